"""Configuration of prompts, sampling, rewards, the rollout engine and the advantages service: `data`."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from relax_lightning.config.engines import engine_faults
from relax_lightning.config.faults import Fault, above, at_least, fault, finite, half_open, one_of, refuse
from relax_lightning.config.keys import key, required, section
from relax_lightning.config.rewards import REWARDS


@dataclass(frozen=True)
class SamplingConfig:
    """How a response is drawn."""

    temperature: float = key(1.0, "divides the logits; 0: greedy, for validation only")
    top_p: float = key(1.0, "draw from the smallest set with this probability, in (0, 1]")
    top_k: int = key(-1, "draw from the k likeliest tokens; -1: all")
    max_new_tokens: int = key(512, "longest response in tokens")
    stop: list[str] = key([], "strings that end a response, with the token that completes one")
    stop_token_ids: list[int] = key(
        [], "tokens that end a response, besides the tokenizer's and the model's own"
    )
    ignore_eos: bool = key(False, "go on after the tokenizer's and the model's end-of-sequence tokens")

    def __post_init__(self) -> None:
        refuse(
            at_least(self, 0, "temperature"),
            half_open(self, 0, 1, "top_p"),
            at_least(self, 1, "max_new_tokens"),
            self._bad_top_k(),
            self._bad_stop_tokens(),
            [Fault("stop", fault("strings that are not empty", "", "leave it out"))]
            if "" in self.stop
            else [],
        )

    def _bad_stop_tokens(self) -> list[Fault]:
        wrong = [token for token in self.stop_token_ids if token < 0]
        return [Fault("stop_token_ids", fault("token ids from 0 up", wrong, "correct them"))] if wrong else []

    def _bad_top_k(self) -> list[Fault]:
        if self.top_k == -1 or self.top_k >= 1:
            return []
        return [
            Fault("top_k", fault("-1 (all tokens) or at least 1", self.top_k, "change it or leave it out"))
        ]


@dataclass(frozen=True)
class PromptsConfig:
    """One set of prompts: a file of ours (`path`), or a user's own class (`class_path`)."""

    path: str | None = key(None, "JSON Lines or Parquet file; null: a class_path instead")
    input_key: str = key("prompt", "column of the prompt: text, or a list of role/content messages")
    label_key: str | None = key("label", "column of what the reward compares with; null: none")
    metadata_key: str | None = key(None, "column of a mapping handed to the reward; null: none")
    apply_chat_template: bool = key(False, "put the prompt through the tokenizer's chat template")
    max_prompt_tokens: int | None = key(
        None, "longer prompts are dropped at load and counted; null: keep all"
    )
    class_path: str | None = key(None, "import path of a prompts class, instead of path; null: none")
    init_args: dict[str, Any] = key({}, "arguments of class_path")
    sampling: SamplingConfig | None = key(
        None, "validation sets only: their own sampling; null follows data.rollout.sampling"
    )
    n_samples_per_prompt: int = key(1, "validation sets only: responses drawn a prompt")
    correct_reward: float = key(
        1.0,
        "validation sets only: reward from which a response counts as right, for mean@n, pass@k and maj@k",
    )

    def __post_init__(self) -> None:
        numbers = at_least(self, 1, "max_prompt_tokens", "n_samples_per_prompt")
        refuse(numbers, finite(self, "correct_reward"), self._source())

    def _source(self) -> list[Fault]:
        if (self.path is None) == (self.class_path is None):
            got = "neither" if self.path is None else "both"
            message = f"wanted one of path and class_path, got {got}; give exactly one of the two"
            return [Fault("path", message, ("class_path",))]
        return [*_no_import_path(self.class_path), *_args_without_class(self)]


@dataclass(frozen=True)
class RewardConfig:
    """What scores a response: a registered reward by name, or a user's own class."""

    name: str | None = key(None, f"a registered reward: {' | '.join(REWARDS)}; null: a class_path instead")
    class_path: str | None = key(None, "import path of a reward, instead of name; null: none")
    init_args: dict[str, Any] = key({}, "arguments of the reward")
    timeout_seconds: float = key(30.0, "a reward that takes longer is ended and named with its sample")
    on_error: str = key("raise", "after a reward failed or timed out: raise | zero")
    num_workers: int = key(2, "worker processes that compute rewards")

    def __post_init__(self) -> None:
        refuse(
            above(self, 0, "timeout_seconds"),
            at_least(self, 1, "num_workers"),
            one_of(self, ("raise", "zero"), "on_error"),
            self._source(),
        )

    def _source(self) -> list[Fault]:
        if (self.name is None) != (self.class_path is None):
            return _no_import_path(self.class_path)
        got = "neither" if self.name is None else "both"
        message = f"wanted one of name and class_path, got {got}; give exactly one of the two"
        return [Fault("name", message, ("class_path",))]


@dataclass(frozen=True)
class ShapingConfig:
    """What is done to the rewards before they are learned from; in this order."""

    overlong_buffer_tokens: int | None = key(
        None, "last tokens up to max_new_tokens in which a penalty grows to overlong_penalty; null: off"
    )
    overlong_penalty: float = key(1.0, "taken from the reward of a response of max_new_tokens")
    missing_eos_penalty: float | None = key(
        None, "taken from the reward of a response that was cut off; null: off"
    )
    normalize: bool = key(False, "subtract the mean and divide by the spread of all rewards so far")
    clip_min: float | None = key(None, "smallest reward; null: no bound")
    clip_max: float | None = key(None, "largest reward; null: no bound")

    def __post_init__(self) -> None:
        refuse(
            at_least(self, 1, "overlong_buffer_tokens"),
            at_least(self, 0, "overlong_penalty", "missing_eos_penalty"),
            finite(self, "clip_min", "clip_max"),
            self._bounds(),
        )

    def _bounds(self) -> list[Fault]:
        low, high = self.clip_min, self.clip_max
        if low is None or high is None or not low > high:
            return []
        message = fault(f"at most clip_max ({high})", low, "change one of the two")
        return [Fault("clip_min", message, ("clip_max",))]


@dataclass(frozen=True)
class EngineConfig:
    """What generates: the embedded engine, or another one by name or import path."""

    class_path: str = key("MegatronEngine", "MegatronEngine, SGLangEngine, or an import path")
    init_args: dict[str, Any] = key({}, "arguments of the engine")

    def __post_init__(self) -> None:
        refuse(engine_faults(self.class_path, self.init_args))


@dataclass(frozen=True)
class RolloutFunctionConfig:
    """A function of a user's own that makes the responses, turn by turn."""

    class_path: str = required("import path of a function of (samples, engine), or of a class of such")
    init_args: dict[str, Any] = key({}, "arguments of the class")

    def __post_init__(self) -> None:
        refuse(_no_import_path(self.class_path))


@dataclass(frozen=True)
class RolloutConfig:
    """Prompts in, rewarded responses out."""

    train: PromptsConfig | None = key(None, "the prompts to train on")
    validation: dict[str, PromptsConfig] = key(
        {}, "a set of prompts to evaluate on, under a name of your own"
    )
    shuffle: bool = key(True, "another order of the training prompts in every epoch")
    batch_size: int | None = key(None, "prompts an iteration, all ranks together")
    n_samples_per_prompt: int = key(1, "responses drawn a prompt")
    sampling: SamplingConfig = section(SamplingConfig, "how a response is drawn")
    reward: RewardConfig | None = key(None, "a registered name, or {class_path, init_args}")
    shaping: ShapingConfig = section(
        ShapingConfig, "what is done to the rewards before they are learned from"
    )
    drop_equal_rewards: bool = key(False, "learn nothing from a prompt whose samples all got the same reward")
    shuffle_rewards: bool = key(False, "the negative control: rewards change places among the samples")
    engine: EngineConfig = section(EngineConfig, "what generates")
    function: RolloutFunctionConfig | None = key(
        None, "{class_path, init_args} of a rollout function, for tools and several turns; null: one turn"
    )
    on_validation_error: str = key(
        "warn", "after an evaluation failed during training: warn (name it and train on) | raise"
    )

    def __post_init__(self) -> None:
        refuse(
            at_least(self, 1, "batch_size", "n_samples_per_prompt"),
            one_of(self, ("warn", "raise"), "on_validation_error"),
            self._validation_keys_in_train(),
            self._validation_names(),
        )

    def _validation_names(self) -> list[Fault]:
        """A name becomes part of metrics' names, of which MLflow refuses some, and of files'."""
        odd = [name for name in self.validation if not re.fullmatch(r"[\w.-]+", name, re.ASCII)]
        wanted = "a name of letters, digits, _, . and -"
        return [Fault(f"validation.{name}", fault(wanted, name, "rename the set")) for name in odd]

    def _validation_keys_in_train(self) -> list[Fault]:
        if self.train is None:
            return []
        changes = {
            "sampling": "move it to data.rollout.sampling",
            "n_samples_per_prompt": "use data.rollout.n_samples_per_prompt",
            "correct_reward": "leave it out",
        }
        defaults = {f.name: f.default for f in fields(PromptsConfig)}
        given = {name: getattr(self.train, name) for name in changes}
        wanted = "nothing, this key is for validation sets"
        return [
            Fault(f"train.{name}", fault(wanted, "a section" if name == "sampling" else value, changes[name]))
            for name, value in given.items()
            if value != defaults[name]
        ]


@dataclass(frozen=True)
class AdvantagesConfig:
    """The service that computes GAE."""

    device: str = key("cpu", "only `cpu`")

    def __post_init__(self) -> None:
        refuse(one_of(self, ("cpu",), "device"))


@dataclass(frozen=True)
class DataConfig:
    """Rollouts and advantages."""

    rollout: RolloutConfig = section(RolloutConfig, "prompts, engine and rewards")
    advantages: AdvantagesConfig = section(AdvantagesConfig, "the service that computes GAE")


def _args_without_class(config: PromptsConfig) -> list[Fault]:
    if config.class_path is not None or not config.init_args:
        return []
    message = fault("nothing without class_path", config.init_args, "give class_path or leave it out")
    return [Fault("init_args", message, ("class_path",))]


def _no_import_path(class_path: str | None) -> list[Fault]:
    if not isinstance(class_path, str) or "." in class_path.strip("."):
        return []
    message = fault("an import path, module.Name", class_path, "for example my_rewards.Mine")
    return [Fault("class_path", message)]
