"""Starting from the roles of a checkpoint, and pairs that are none."""

import shutil

import pytest

from relax_lightning.checkpoints.folders import TRACKER, complete_iterations

SAVED = ("trainer.max_steps=4", "callbacks.checkpoint={every_n_steps: 2, keep_last: 3, save_last: false}")


@pytest.fixture(scope="module")
def source(fit, tmp_path_factory):
    """A run of four iterations, saved at 2 and 4, with a save root of its own for the critic."""
    folder = tmp_path_factory.mktemp("source")
    run = fit(folder, *SAVED, f"model.critic.save={folder / 'critics'}")
    run.folder = folder
    return run


def roots(folder, tracker=2):
    """The keys that load both roles at the iteration that the trackers say."""
    for root in (folder / "checkpoints", folder / "critics"):
        (root / TRACKER).write_text(f"{tracker}\n")
    return f"model.actor.load={folder / 'checkpoints'}", f"model.critic.load={folder / 'critics'}"


@pytest.fixture
def copy(source, tmp_path):
    return shutil.copytree(source.folder, tmp_path / "copy")


def test_separate_roots_hold_one_half_each(source):
    assert complete_iterations(source.folder / "checkpoints", ("actor",)) == [2, 4]
    assert complete_iterations(source.folder / "critics", ("critic",)) == [2, 4]
    assert complete_iterations(source.folder / "checkpoints") == []


def test_load_resumes_everything_where_trainer_state_lies_beside(fit, recorder, source, copy, tmp_path):
    run = fit(tmp_path / "run", *SAVED, *roots(copy))
    assert sorted(run.metrics) == [3, 4]
    assert recorder.differing(run.states[4], source.states[4]) == []


def test_load_resumes_the_roles_alone_where_it_does_not(fit, recorder, source, copy, tmp_path):
    shutil.rmtree(copy / "checkpoints" / "iter_0000002" / "trainer")
    run = fit(tmp_path / "run", *SAVED, *roots(copy))
    # The iteration, the moments and the rates go on; the prompts begin anew.
    assert sorted(run.metrics) == [3, 4] and run.rollouts[0].prompts == source.rollouts[0].prompts
    for step in (3, 4):
        for role in ("actor", "critic"):
            assert run.metrics[step][f"{role}/lr"] == pytest.approx(
                source.metrics[step][f"{role}/lr"], rel=1e-9
            )
        assert run.states[step]["critic.num_steps_done"] == source.states[step]["critic.num_steps_done"]
    assert complete_iterations(tmp_path / "run" / "checkpoints") == [4]
    resumed = fit(tmp_path / "run", *SAVED, "trainer.max_steps=5", ckpt_path="auto")
    assert sorted(resumed.metrics) == [5]
    assert recorder.differing(run.states[4], resumed.states[5], "actor.weights")


def test_a_warm_start_takes_the_weights_of_both_roles_alone(fit, recorder, source, tmp_path):
    roots = (
        f"model.actor.warm_start={source.folder / 'checkpoints' / 'iter_0000004'}",
        f"model.critic.warm_start={source.folder / 'critics'}",
    )
    still = [
        f"model.{role}.optimizer.{key}" for role in ("actor", "critic") for key in ("lr=1e-30", "min_lr=0")
    ]
    other_data = ("data.rollout.batch_size=4", "data.rollout.train.init_args.size=32")
    run = fit(tmp_path / "run", *roots, *still, *other_data, "trainer.max_steps=1")
    assert sorted(run.metrics) == [1] and len(run.rollouts[0].prompts) == 4 * 2
    for role in ("actor", "critic"):
        weights = {k: v for k, v in run.states[1].items() if k.startswith(f"{role}.weights")}
        assert recorder.differing(weights, {k: source.states[4][k] for k in weights}) == []
        # 4 prompts by 2 samples are one step, twice.
        assert run.states[1][f"{role}.num_steps_done"] == run.states[1][f"{role}.schedule"]["num_steps"] == 2


def test_a_warm_critic_follows_the_actor(fit, tmp_path):
    """From the run's own folder, whose checkpoints are put aside after they were read."""
    saved = "callbacks.checkpoint={save_last: true}"
    first = fit(tmp_path, "trainer.max_steps=1", saved)
    root = tmp_path / "checkpoints"
    second = fit(tmp_path, "trainer.max_steps=1", saved, f"model.actor.warm_start={root}")
    assert not first.experiences[0].values.any() and second.experiences[0].values.any()
    assert complete_iterations(tmp_path / "checkpoints.1") == complete_iterations(root) == [1]
    resumed = fit(tmp_path, "trainer.max_steps=2", "model.actor.warm_start=/nowhere", ckpt_path="auto")
    assert sorted(resumed.metrics) == [2]


@pytest.fixture
def refused(copy, tmp_path, capfd, recorder, monkeypatch):
    """A function that runs the command, which must refuse in one line, and gives that line."""
    from relax_lightning.cli import main

    monkeypatch.chdir(tmp_path)

    def refused(*words):
        run = tmp_path / "run"
        config = str(recorder.__file__).replace("recorder.py", "digits.yaml")
        status = main(["fit", "--config", config, "--trainer.default_root_dir", str(run), *words])
        output = capfd.readouterr().err
        assert status == 1 and not run.exists(), output
        (line,) = [text for text in output.splitlines() if text.startswith("  - ")]
        return line

    return refused


def test_bad_pairs_are_refused_before_anything_starts(refused, copy):
    actors, critics = copy / "checkpoints", copy / "critics"
    keys = [word for key in roots(copy) for word in ("--" + key.split("=")[0], key.split("=")[1])]

    (critics / TRACKER).write_text("4\n")
    line = refused(*keys)
    assert (
        "model.actor.load" in line
        and f"actor iteration 2 in {actors}, critic iteration 4 in {critics}" in line
    )
    (critics / TRACKER).unlink()
    assert f"critic nothing (no {TRACKER}) in {critics}" in refused(*keys)
    (critics / TRACKER).write_text("2\n")
    assert "only one of --ckpt_path and model.actor.load" in refused(*keys, "--ckpt_path", str(actors))
    (critics / "iter_0000002" / "critic").rename(critics / "gone")
    assert "wanted the critic's half" in refused(*keys)
    assert "a checkpoint of the actor beside the critic's" in refused("--model.critic.load", str(critics))

    for path in (str(copy / "nowhere"), str(actors / "iter_2"), str(copy)):
        assert "a complete checkpoint (with manifest.json)" in refused("--ckpt_path", path)


def test_a_checkpoint_with_one_half_is_refused(refused, copy):
    folder = copy / "checkpoints" / "iter_0000004"
    # The critic's half lies under the critic's own root, which this configuration does not name.
    assert "critic" in refused("--ckpt_path", str(folder))
    shutil.rmtree(folder / "actor")
    assert "actor" in refused("--ckpt_path", str(folder))


def test_saving_under_another_name_is_refused(fit, tmp_path):
    run = fit(tmp_path, "trainer.max_steps=1")
    with pytest.raises(
        ValueError, match=r"wanted a checkpoint path that ends in iter_0000012 or alike, got .*best"
    ):
        run.trainer.strategy.save_checkpoint({}, tmp_path / "best")
