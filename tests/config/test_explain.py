"""What `config --explain` says of a key, and that it can say it of every one."""

from functools import cache

import pytest

from relax_lightning.config import load, resolve, to_dict
from relax_lightning.config.explain import explain, null_meaning
from relax_lightning.config.loader import REQUIRED, value_at
from relax_lightning.config.names import FOREIGN_NAMES, REFERENCE_FLAGS
from relax_lightning.config.sections import entries, sections


@cache
def rows(key):
    """The labelled lines of an explanation: several lines of one label come as a list."""
    found = {}
    for line in explain(key).split("\n\n  its keys")[0].splitlines():
        if line.startswith("  "):
            found.setdefault(line[:18].strip() or list(found)[-1], []).append(line[18:])
    return found


def test_a_key_in_full():
    assert explain("model.algorithm.lambd").splitlines() == [
        "model.algorithm.lambd",
        "  meaning         GAE lambda, in [0, 1]",
        "  type            a number",
        "  allowed         a number from 0 to 1",
        "  default         1.0",
        "  read by         relax_lightning/data/experience.py: advantages_and_returns",
        "  reference flag  --lambd",
        "  other names     gae_lambda, gae_lam, lam, lambda, lambda_",
    ]
    assert explain("--model.algorithm.lambd") == explain("model.algorithm.lambd")
    for end, key in {
        "target_kl": "model.algorithm.target_kl",
        "sampling.temperature": "data.rollout.sampling.temperature",
        "missing_eos_penalty": "data.rollout.shaping.missing_eos_penalty",
    }.items():
        assert explain(end).splitlines()[:3] == [f"{end} is {key} here.", "", key]
    shown = rows("model.critic.optimizer.lr")
    assert shown["null"] == ["follows model.actor.optimizer.lr"]
    assert (shown["type"], shown["default"]) == (["a number or null"], ["null"])
    assert rows("strategy.offload")["allowed"] == ["one of auto, always, never"]
    assert rows("data.rollout.batch_size")["default"] == ["required"]
    assert rows("data.rollout.batch_size")["type"] == ["a whole number"]
    assert rows("model.actor.architecture.num_layers")["default"] == ["required"]
    assert rows("model.algorithm.advantage_estimator")["read by"] == ["nothing yet, beyond the checks"]


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("gae_lambda", "model.algorithm.lambd"),
        ("model.algorithm.gae_lambda", "model.algorithm.lambd"),
        ("clip-ratio", "model.algorithm.eps_clip"),
        ("--critic-lr", "model.critic.optimizer.lr"),
        ("n_samples_per_prompt", "data.rollout.n_samples_per_prompt"),
        ("model.critic.learning_rate", "model.critic.optimizer.lr"),
        ("--sglang-mem-fraction-static", "data.rollout.engine.init_args.mem_fraction_static"),
    ],
)
def test_names_of_others_are_answered_with_ours(written, ours):
    first, empty, *rest = explain(written).splitlines()
    assert (first, empty) == (f"{written} is {ours} here.", "")
    assert "\n".join(rest) == explain(ours)


def test_every_foreign_name_and_flag_is_answered():
    for name in [*FOREIGN_NAMES, *REFERENCE_FLAGS]:
        ours = (
            REFERENCE_FLAGS.get(f"--{name.replace('_', '-')}")
            or FOREIGN_NAMES.get(name)
            or REFERENCE_FLAGS[name]
        )
        assert f"\n{ours}\n" in f"\n{explain(name)}\n", name


def test_a_section_lists_its_keys():
    lines = explain("model.algorithm").splitlines()
    assert lines[:5] == [
        "model.algorithm",
        "  meaning         the PPO arithmetic",
        "  type            a section",
        "",
        "  its keys",
    ]
    keys = [line.split()[0] for line in lines[5:] if not line.startswith("   ")]
    algorithm = next(section for section in sections() if section.key == "model.algorithm")
    assert keys == [entry.name for entry in algorithm.entries]
    assert "  optimizer                 a section         the critic's optimizer" in explain("model.critic")
    shown = rows("callbacks.checkpoint")
    assert shown["read by"] == ["callbacks/checkpoint.py: PairedCheckpoint"]
    assert shown["null"] == ["nothing is saved"]


def test_names_of_the_users_own():
    assert rows("data.rollout.validation.aime-2024.path") == rows("data.rollout.validation.<name>.path")
    assert rows("data.rollout.validation.mine.sampling.top_p")["default"] == ["1.0"]
    for whole in ("data.rollout.validation.mine", "data.rollout.validation"):
        assert "  label_key                 label             column of what" in explain(whole)
    assert rows("cluster.resources.actor")["default"] == ["[1, 8]"]
    assert rows("cluster.resources.actor")["type"] == ["a list of 2 values, each a whole number"]
    assert rows("tracking.mlflow.tags.team")["default"] == ["none"]
    assert rows("data.rollout.engine.init_args.any.thing")["read by"] == [
        "relax_lightning/data/rollout.py: _build_engine"
    ]


@pytest.mark.parametrize(
    ("written", "change"),
    [
        ("model.algorithm.gama", "did you mean `model.algorithm.gamma`?"),
        ("missing_eos_penlty", "did you mean `data.rollout.shaping.missing_eos_penalty`?"),
        ("data.rollout.validation.mine.pth", "did you mean `data.rollout.validation.mine.path`?"),
        ("trainer.devices", "this is derived from the cluster: use cluster.resources"),
        ("zzz", "relax-lightning fit --help lists all keys"),
        ("", "relax-lightning fit --help lists all keys"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(written, change):
    with pytest.raises(ValueError, match=r"^--explain: ") as error:
        explain(written)
    assert str(error.value) == f"--explain: wanted a known key, got {written!r}; {change}"


def test_every_key_can_be_explained_in_100_columns():
    for key, entry in entries().items():
        text = explain(key)
        assert max(map(len, text.splitlines())) <= 100, key
        assert rows(key)["meaning"] != [""], key
        if entry.section is None or entry.default is None:
            assert "default" in rows(key), key


def test_every_null_is_explained():
    for key, entry in entries().items():
        takes_null = "or null" in "".join(rows(key)["type"])
        assert (null_meaning(entry) is not None) == (takes_null and key not in REQUIRED), key


OTHER = {float: 0.25, int: 3, str: "other", bool: False}
SPECIAL = {
    "model.actor.optimizer.betas": [0.5, 0.6],
    "model.actor.optimizer.decay": "linear",
    "model.actor.parallel": {"tensor": 2},
    "data.rollout.sampling": {"temperature": 0.5},
}


def test_a_null_that_follows_another_key_does():
    follows = {key: (null_meaning(entry) or "").partition("follows ")[2] for key, entry in entries().items()}
    follows = {
        key: target
        for key, target in follows.items()
        if ".train." not in key and ".architecture." not in key and target
    }
    assert len(follows) >= 17
    given = ["data.rollout.train.path=x", "data.rollout.batch_size=4", "data.rollout.reward=exact_match"]
    given += ["data.rollout.validation.mine.path=y", "model.reference={}"]
    for key, target in follows.items():
        value = (
            SPECIAL.get(target)
            or OTHER[next(k for k in OTHER if k in (entries()[target].kind, _first(target)))]
        )
        config = resolve(load([], [*given, f"{target}={value}"]))
        expected = to_dict(value_at(config, target))
        if "<name>" in key:
            assert to_dict(config.data.rollout.validation["mine"].sampling) == expected
        else:
            assert to_dict(value_at(config, key)) == expected, key
        assert expected != to_dict(value_at(load([], given), target)), f"{target} was not changed"


def _first(target):
    return next(iter(getattr(entries()[target].kind, "__args__", (None,))))
