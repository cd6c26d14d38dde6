"""jsonargparse builds every section from the resolved tree, as LightningCLI will."""

import pytest
from jsonargparse import ArgumentParser

from relax_lightning import config as c
from relax_lightning.config.parsing import register_config_types


class Module:
    """Takes sections the way a LightningModule does."""

    def __init__(
        self,
        model: c.ModelConfig,
        actor: c.ActorConfig,
        critic: c.CriticConfig,
        algorithm: c.AlgorithmConfig,
        rollout: c.RolloutConfig,
        callbacks: c.CallbacksConfig,
        tracking: c.TrackingConfig,
        cluster: c.ClusterConfig | None = None,
    ) -> None:
        self.sections = locals()


@pytest.mark.parametrize("more", [[], ["cluster={}", "data.rollout.reward={class_path: my.Reward}"]])
def test_sections_survive_jsonargparse(more):
    architecture = "{num_layers: 1, hidden_size: 8, num_attention_heads: 2, vocab_size: 9}"
    config = c.resolve(
        c.load(
            [],
            [
                f"model.actor.architecture={architecture}",
                "model.actor.optimizer.lr=1e-3",
                "data.rollout.train.path=x",
                "data.rollout.batch_size=4",
                "data.rollout.reward=exact_match",
                "data.rollout.engine={class_path: my.Engine, init_args: {a: 1}}",
                "data.rollout.validation={a: {class_path: my.Prompts, init_args: {n: 3}}}",
                "callbacks.curves=null",
                *more,
            ],
        )
    )
    sections = {
        "model": config.model,
        "actor": config.model.actor,
        "critic": config.model.critic,
        "algorithm": config.model.algorithm,
        "rollout": config.data.rollout,
        "callbacks": config.callbacks,
        "tracking": config.tracking,
        "cluster": config.cluster,
    }
    register_config_types()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Module, "module")
    parsed = parser.parse_object({"module": {name: c.to_dict(section) for name, section in sections.items()}})
    built = parser.instantiate(parsed).module.sections
    assert {name: built[name] for name in sections} == sections


def test_a_fault_that_only_the_parser_sees_keeps_its_words():
    register_config_types()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--reward", type=c.RewardConfig)
    with pytest.raises(Exception, match="num_workers: wanted a whole number, got 'x'"):
        parser.parse_object({"reward": {"name": "exact_match", "num_workers": "x"}})
