"""Where keys are read: known places are found, no other is named, and every key that does something has a reader."""

import ast
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest

from relax_lightning.config.callbacks import CallbacksConfig
from relax_lightning.config.readers import HANDED_ON, KEPT_BACK, readers_of
from relax_lightning.config.sections import entries, field_types
from relax_lightning.config.trainer import TrainerConfig

REPOSITORY = Path(__file__).resolve().parents[2]

# Keys of what is not there yet: the plan refuses them, or one value is all they can have.
NOT_THERE_YET = {
    "cluster.colocate",
    "data.advantages.device",
    "model.actor.optimizer.cpu_offload_fraction",
    "model.algorithm.advantage_estimator",
    "model.bridge",
    "model.critic.optimizer.cpu_offload_fraction",
    "strategy.offload",
    "strategy.verify_publish",
}


@pytest.mark.parametrize(
    ("key", "places"),
    [
        ("model.algorithm.eps_clip", ["relax_lightning/ppo/updates.py: StepLoss.actor"]),
        ("model.algorithm.target_kl", ["relax_lightning/ppo/module.py: PPOModule._run_steps.after_step"]),
        ("model.micro_batch_size", ["relax_lightning/ppo/updates.py: Batching.groups"]),
        # Megatron has an OptimizerConfig with an lr of its own in that file, and names it like ours.
        ("model.actor.optimizer.betas", ["relax_lightning/megatron/optimizer.py: build_optimizer"]),
        ("model.critic.optimizer.betas", ["relax_lightning/megatron/optimizer.py: build_optimizer"]),
        ("model.critic.head_init", ["relax_lightning/megatron/build.py: build_critic"]),
        # `path` and `name` are attributes of much else.
        (
            "data.rollout.reward.name",
            [
                "relax_lightning/data/rollout.py: RolloutDataModule._load",
                "relax_lightning/rewards/worker_process.py: WorkerProcess.__init__",
            ],
        ),
        (
            "data.rollout.train.input_key",
            [
                "relax_lightning/data/prompt_cache.py: cache_key",
                "relax_lightning/data/prompt_records.py: read_records",
            ],
        ),
        (
            "data.rollout.validation.<name>.n_samples_per_prompt",
            [
                "relax_lightning/data/evaluation.py: _metrics_of_set",
                "relax_lightning/data/rollout.py: RolloutDataModule.evaluate",
            ],
        ),
        (
            "data.rollout.sampling.stop",
            [
                "relax_lightning/rollout/sglang/engine.py: SGLangEngine.generate",
                "relax_lightning/rollout/stopping.py: StopCondition.__init__",
                "relax_lightning/rollout/turns.py: TurnEngine.generate",
            ],
        ),
        ("tracking.mlflow.tags", ["relax_lightning/lightning_cli.py: RelaxLightningCLI._logger"]),
        ("callbacks.lr_warmup.critic.num_iters", ["callbacks/lr_warmup.py: LRWarmup.__init__"]),
        ("callbacks.metrics.samples_per_table", ["callbacks/metrics.py: MetricLogger"]),
        ("trainer.val_check_interval", ["Lightning's Trainer"]),
        (
            "trainer.val_before_training",
            ["relax_lightning/lightning_cli.py: RelaxLightningCLI._trainer_tree"],
        ),
        ("trainer.enable_progress_bar", ["relax_lightning/lightning_cli.py: RelaxLightningCLI._tree"]),
    ],
)
def test_known_places(key, places):
    assert readers_of(entries()[key]) == places


def test_every_key_that_does_something_has_a_reader():
    unread = {key for key, entry in entries().items() if entry.section is None and not readers_of(entry)}
    assert unread <= NOT_THERE_YET
    assert entries().keys() >= NOT_THERE_YET


def test_every_place_is_a_function_that_names_the_key():
    for entry in entries().values():
        for place in readers_of(entry) if entry.section is None else []:
            file, _, scope = place.partition(": ")
            if not scope or place in HANDED_ON.values():
                continue
            text = ast.unparse(_definition(file, scope.split(".")))
            assert f".{entry.name}" in text or "fields(" in text, (entry.key, place)


def test_what_is_handed_on_whole_has_these_arguments():
    assert {kind.__name__ for kind in HANDED_ON} == {
        TrainerConfig.__name__,
        *(str(field_types(CallbacksConfig)[f.name].__args__[0].__name__) for f in fields(CallbacksConfig)),
    }
    lightning = Path(find_spec("lightning").origin).parent
    for config, place in HANDED_ON.items():
        file, _, name = place.partition(": ")
        if config is TrainerConfig:
            file, name = lightning / "pytorch/trainer/trainer.py", "Trainer"
        arguments = _definition(file, [name, "__init__"]).args
        known = {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}
        assert {f.name for f in fields(config)} - set(KEPT_BACK) <= known, place


def _definition(file, scope):
    node = ast.parse((REPOSITORY / file).read_text())
    for name in scope:
        node = next(
            n for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name
        )
    return node
