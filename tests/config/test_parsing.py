"""jsonargparse builds every section from the resolved tree, as LightningCLI will."""

from typing import Any

import pytest
from jsonargparse import ArgumentParser

from relax_lightning import config as c
from relax_lightning.config.parsing import refusal, register_config_types


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


class Base:
    """What a user's classes are derived from."""


class Leaf(Base):
    def __init__(self, number: int = 0, text: str = "", anything: Any = None) -> None:
        self.given = [number, text, anything]


class Outer(Base):
    def __init__(self, inner: Base, more: list[Base] | None = None) -> None:
        self.given = [inner, more]


def user_parser():
    register_config_types()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--trainer.callbacks", type=list[Base] | Base | None)
    return parser


def test_text_of_a_users_class_is_read_as_in_a_file():
    parser = user_parser()

    def given(**init_args):
        entry = {"class_path": f"{__name__}.Leaf", "init_args": init_args}
        parsed = parser.parse_object({"trainer": {"callbacks": [entry]}})
        return parser.instantiate(parsed).trainer.callbacks[0].given

    assert given(number="010", text="1:00") == [10, "1:00", None]
    assert given(anything="1:00") == [0, "", "1:00"]
    assert given(anything="yes") == [0, "", "yes"]
    for wrong in ("1:00", "yes", "0b1", "1_0:0", 3.0):
        with pytest.raises(Exception, match="Expected a <class 'int'>"):
            given(number=wrong)


LEAF, OUTER = f"{__name__}.Leaf", f"{__name__}.Outer"


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (
            {"class_path": LEAF, "init_args": {"text": 3}},
            f"{LEAF}: text: Expected a <class 'str'>. Got value: 3",
        ),
        ({"class_path": OUTER}, f"{OUTER}: the following arguments are required: inner"),
        (
            {"class_path": OUTER, "init_args": {"inner": {"class_path": LEAF, "init_args": {"numbr": 1}}}},
            f"{OUTER}: inner: {LEAF}: Option 'numbr' is not accepted",
        ),
        (
            {"class_path": OUTER, "init_args": {"inner": {"class_path": "no.Such"}}},
            f"{OUTER}: inner: no.Such: No module named 'no'",
        ),
        (
            {
                "class_path": OUTER,
                "init_args": {
                    "inner": {"class_path": LEAF},
                    "more": [{"class_path": LEAF}, {"class_path": LEAF, "init_args": {"x": 1}}],
                },
            },
            f"{OUTER}: more: {LEAF}: Option 'x' is not accepted",
        ),
        (
            {"class_path": OUTER, "init_args": {"inner": 3}},
            f"{OUTER}: inner: Not a valid subclass of Base. Got value: 3",
        ),
    ],
)
def test_a_fault_in_a_users_class_is_one_sentence(entry, sentence):
    with pytest.raises(Exception, match="Parser key") as error:
        user_parser().parse_object({"trainer": {"callbacks": [entry]}})
    assert refusal(str(error.value)) == f"trainer.callbacks: {sentence}; correct its class_path or init_args"
