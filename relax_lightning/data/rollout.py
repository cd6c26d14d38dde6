"""The rollout side: prompts in, rewarded responses out."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from relax_lightning.algorithms.diagnostics import num_turns, repeated_fraction
from relax_lightning.config import EngineConfig, PromptsConfig, RolloutConfig, SamplingConfig
from relax_lightning.config.engines import ENGINES
from relax_lightning.data.endless import EndlessPrompts
from relax_lightning.data.prompts import PromptDataset, PromptLoader
from relax_lightning.data.tokenizer import load_tokenizer
from relax_lightning.distributed.peers import ALONE
from relax_lightning.ppo.batch import Prompts, Rollouts
from relax_lightning.rewards.records import RewardError, RewardOutcome, RewardRequest
from relax_lightning.rewards.registry import load_label
from relax_lightning.rewards.workers import RewardWorkers
from relax_lightning.rollout.engine import RolloutEngine
from relax_lightning.rollout.function import load_rollout_function, run_rollout_function
from relax_lightning.rollout.turns import RolloutFunction, Sample, TurnEngine
from relax_lightning.rollout.vocabulary import Vocabulary
from relax_lightning.run.errors import never_hiding_an_error
from relax_lightning.run.import_path import import_object


@dataclass(frozen=True)
class Scores:
    """What the statistics of generation need of each sample, all [samples] float64."""

    rewards: Tensor
    lengths: Tensor
    truncated: Tensor
    trainable: Tensor
    """Tokens of the response that may be learned from."""
    turns: Tensor
    repeated: Tensor
    """Share of the response's runs of four tokens that stand in it before."""
    sample_ids: Tensor
    answers: Tensor
    """Equal numbers are equal answers to one prompt; -1: no answer, or none was looked for."""

    @classmethod
    def of(cls, rollouts: Rollouts, answers: Sequence[str | None] | None = None) -> Scores:
        """The scores of a round of generation; `answers` has one entry a sample."""
        mask = rollouts.response_mask
        numbers: dict[str, int] = {}
        coded = [
            -1 if a is None else numbers.setdefault(a, len(numbers)) for a in answers or [None] * len(mask)
        ]
        columns = (
            rollouts.rewards,
            rollouts.response_lengths,
            rollouts.truncated,
            mask.sum(1),
            num_turns(mask),
            repeated_fraction(rollouts.response_tokens, mask),
            rollouts.sample_ids,
            torch.tensor(coded),
        )
        return cls(*(column.double() for column in columns))

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        """Several rounds as one."""
        return cls(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    def metrics(self) -> dict[str, float]:
        """Reward and response statistics."""
        return {
            "reward/mean": float(self.rewards.mean()),
            "reward/std": float(self.rewards.std()) if len(self.rewards) > 1 else 0.0,
            "response/length_mean": float(self.lengths.mean()),
            "response/truncated_fraction": float(self.truncated.mean()),
            "response/untrainable_fraction": float((self.trainable == 0).double().mean()),
            "response/trainable_token_fraction": float(
                self.trainable.sum() / self.lengths.sum().clamp(min=1)
            ),
            "response/num_turns_mean": float(self.turns.mean()),
            "response/repeated_fraction": float(self.repeated.mean()),
        }


class RolloutDataModule(LightningDataModule):
    """Prompts, the rollout engine and the reward.

    Args:
        config: The keys under `data.rollout`.
        tokenizer: Directory or import path of the tokenizer.
        vocabulary_size: Rows of the policy's vocabulary, which may have more than the tokenizer has tokens.
        seed: Of the order of prompts and of every draw.
        max_context: Longest prompt and response together, in tokens; prompts that leave no room are dropped.
        end_tokens: Tokens that end a response besides the tokenizer's own; those that do not exist are told of.
    """

    def __init__(
        self,
        config: RolloutConfig,
        *,
        tokenizer: str,
        vocabulary_size: int,
        seed: int,
        max_context: int | None = None,
        end_tokens: Sequence[int] = (),
    ) -> None:
        super().__init__()
        assert config.batch_size is not None and config.reward is not None
        self.config = self._config = config
        self._tokenizer_source = tokenizer
        self._seed = seed
        self._max_context = max_context
        self._batch_size = config.batch_size
        self.samples_per_iteration = config.batch_size * config.n_samples_per_prompt
        self.run_folder: str | Path = "."
        self._vocabulary_size = vocabulary_size
        self._end_tokens = end_tokens
        self.vocabulary: Vocabulary
        self.peers = ALONE
        """All processes of the job; each generates its share, and the first one rewards."""
        self.reward_metrics: dict[str, float] = {}
        """Of the newest `generate`: the share of rewards that failed, where those count 0."""
        self.tokenizer: Any = None
        self.engine: RolloutEngine
        self._train: PromptDataset | None = None
        self._validation: dict[str, PromptDataset] = {}
        self._reward: RewardWorkers | None = None
        self._function: RolloutFunction | None = None

    def setup(self, stage: str) -> None:
        """Everything that can be wrong with data, reward or engine comes out here, before a model is built."""
        if self.tokenizer is not None:
            return
        self.tokenizer = load_tokenizer(self._tokenizer_source)
        self._look_at_tokens()
        if stage == "fit":
            assert self._config.train is not None
            self._train = self._load("train", self._config.train)
        self._validation = {
            name: self._load(name, config) for name, config in self._config.validation.items()
        }
        self.engine = _build_engine(self._config.engine)
        if self._config.function is not None:
            self._function = load_rollout_function(self._config.function)
        assert self._config.reward is not None
        if self.peers.is_first:
            self._reward = RewardWorkers(self._config.reward)
            self._reward.__enter__()

    def _look_at_tokens(self) -> None:
        self.vocabulary = Vocabulary(self.tokenizer, self._vocabulary_size, self._end_tokens)
        if unknown := self.vocabulary.unknown_ends:
            rank_zero_warn(
                f"the model's eos_token_id: {unknown} are no tokens of its tokenizer; they are ignored"
            )
        if (ends := self.vocabulary.ends) and self.peers.is_first:
            names = ", ".join(f"{token} ({self.tokenizer.decode([token])!r})" for token in ends)
            print(f"By the model's eos_token_id a response also ends with {names}.")

    def _load(self, name: str, config: PromptsConfig) -> PromptDataset:
        sampling = config.sampling or self._config.sampling
        room = None if self._max_context is None else self._max_context - sampling.max_new_tokens
        limits = [limit for limit in (config.max_prompt_tokens, room) if limit is not None]
        assert self._config.reward is not None
        data = PromptDataset.load(
            config,
            self.tokenizer,
            max_prompt_tokens=min(limits, default=None),
            read_label=load_label(self._config.reward.name),
        )
        self.vocabulary.check_prompts(name, (row.token_ids for row in data.rows))
        self._check_alike(name, data)
        if data.num_dropped:
            total = len(data) + data.num_dropped
            rank_zero_warn(
                f"prompts {name}: {data.num_dropped} of {total} are longer than {min(limits)} tokens and were dropped"
            )
        return data

    def _check_alike(self, name: str, data: PromptDataset) -> None:
        """Each rank builds its own: a response would be paired with another rank's prompt.

        Raises:
            ValueError: Ranks have different prompts.
        """
        if self.peers.size == 1:
            return  # a fingerprint is a pass over all tokens
        for rank, (length, fingerprint) in enumerate(self.peers.gather((len(data), data.fingerprint))):
            if fingerprint != data.fingerprint:
                raise ValueError(
                    f"data.rollout prompts {name}: wanted the same on every rank, got {len(data)} on rank "
                    f"{self.peers.rank} and {length} others on rank {rank}; a class of your own must draw from a "
                    "seed of its own, and read the same files everywhere"
                )

    def teardown(self, stage: str) -> None:
        """End engine and reward workers."""
        engine = getattr(self, "engine", None)
        if self.tokenizer is not None and engine is not None:
            engine.close()
        if self._reward is not None:
            self._reward.close()
        self.tokenizer = self._reward = None

    def train_dataloader(self) -> EndlessPrompts:
        """Prompts of one iteration a batch."""
        assert self._train is not None
        loader = PromptLoader(self._train, self._batch_size, shuffle=self._config.shuffle, seed=self._seed)
        return EndlessPrompts(loader)

    def val_dataloader(self) -> list[PromptLoader]:
        """One loader a validation set, in order."""
        return [
            PromptLoader(
                data, min(self._batch_size, len(data)), shuffle=False, seed=self._seed, drop_last=False
            )
            for data in self._validation.values()
        ]

    def generate(self, prompts: Prompts, iteration: int) -> Rollouts:
        """Responses and rewards of one training iteration.

        Raises:
            RewardError: A reward failed under `on_error: raise`; the samples are in a dump by then.
            RolloutFunctionError: The rollout function raised, or its samples cannot be learned from.
        """
        config = self._config
        seed = mix_seed(self._seed, iteration)
        asked = _samples(prompts, config.n_samples_per_prompt)
        rollouts, outcomes = self._answer(asked, config.sampling, seed, f"iter_{iteration:07d}")
        if config.reward is not None and config.reward.on_error == "zero":
            num_failed = sum(outcome.error is not None for outcome in outcomes)
            self.reward_metrics = {"reward/failed_fraction": num_failed / len(outcomes)}
        if config.shuffle_rewards:
            order = torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(seed))
            rollouts = replace(rollouts, rewards=rollouts.rewards[order])
        return rollouts

    @property
    def validation_names(self) -> list[str]:
        """The validation sets, in the order of their loaders."""
        return list(self._validation)

    @property
    def validation(self) -> dict[str, PromptsConfig]:
        """What is configured of each validation set."""
        return self._config.validation

    @property
    def on_validation_error(self) -> str:
        """What follows when an evaluation fails: `warn` or `raise`."""
        return self._config.on_validation_error

    def evaluate(self, prompts: Prompts, name: str) -> Scores:
        """The scores of one batch of the validation set `name`.

        The draws depend on the set and the prompt, never on the iteration.
        """
        config = self._config.validation[name]
        seed = mix_seed(self._seed, zlib.crc32(name.encode()))
        sampling = config.sampling or self._config.sampling
        num_samples = config.n_samples_per_prompt
        asked = _samples(prompts, num_samples)
        rollouts, outcomes = self._answer(asked, sampling, seed, f"val_{name}", wants_answers=num_samples > 1)
        return Scores.of(rollouts, [outcome.answer for outcome in outcomes])

    def _answer(
        self,
        asked: list[Sample],
        sampling: SamplingConfig,
        seed: int,
        dump_name: str,
        *,
        wants_answers: bool = False,
    ) -> tuple[Rollouts, list[RewardOutcome]]:
        """The responses to some samples, and what the reward says of each."""
        sampling = self.vocabulary.ending(sampling)
        turns = TurnEngine(self.engine, self.tokenizer, sampling, seed, self.peers)
        function = self._function
        if function is None:
            samples = turns.generate(asked)
        else:
            samples = turns.led_by_first(
                lambda: run_rollout_function(function, asked, turns, self.vocabulary.num_rows)
            )
        self.vocabulary.refuse_absent(samples)
        requests = [
            RewardRequest(s.sample_id, s.prompt, turns.text(s.token_ids), s.label, s.metadata, wants_answers)
            for s in samples
        ]
        outcomes = self.peers.on_first(lambda: self._score(requests, dump_name))
        version = self.engine.weight_version
        return _rollouts(samples, requests, outcomes, sampling, version), outcomes

    def _score(self, requests: list[RewardRequest], dump_name: str) -> list[RewardOutcome]:
        assert self._reward is not None
        try:
            return self._reward.score(requests)
        except RewardError as error:
            path = Path(self.run_folder) / "failed_rewards" / f"{dump_name}.jsonl"
            with never_hiding_an_error("keeping the samples of this round"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("".join(json.dumps(vars(r), default=str) + "\n" for r in requests))
                error.add_note(f"All samples of this round are kept in {path}")
            raise


def _samples(prompts: Prompts, num_samples: int) -> list[Sample]:
    """Each prompt `num_samples` times, without responses; the samples of one prompt are neighbours."""
    return [
        Sample(
            sample_id=prompts.ids[row] * num_samples + number,
            prompt_token_ids=tuple(prompts.token_ids[row]),
            prompt=prompts.texts[row],
            label=prompts.labels[row],
            metadata=prompts.metadata[row],
        )
        for row in range(len(prompts))
        for number in range(num_samples)
    ]


def mix_seed(seed: int, number: int) -> int:
    """A seed of its own for each number."""
    return (seed * 0x9E37_79B1 + number * 0x85EB_CA77) & 0x7FFF_FFFF_FFFF_FFFF


def _build_engine(config: EngineConfig) -> RolloutEngine:
    engine = import_object(
        "data.rollout.engine.class_path", ENGINES.get(config.class_path, config.class_path)
    )
    try:
        built = engine(**config.init_args)
    except TypeError as error:
        raise ValueError(
            f"data.rollout.engine.init_args: {config.class_path} does not take them: {error}"
        ) from error
    if not isinstance(built, RolloutEngine):
        raise ValueError(
            f"data.rollout.engine.class_path: {config.class_path} is no RolloutEngine; "
            "relax_lightning/rollout/engine.py lists its methods"
        )
    return built


def _rollouts(
    samples: Sequence[Sample],
    requests: Sequence[RewardRequest],
    outcomes: Sequence[RewardOutcome],
    sampling: SamplingConfig,
    weight_version: int,
) -> Rollouts:
    prompt_tokens, prompt_lengths = pad([s.prompt_token_ids for s in samples], torch.int64)
    response_tokens, response_lengths = pad([s.token_ids for s in samples], torch.int64)
    mask, _ = pad([s.mask for s in samples], torch.bool)
    log_probs, _ = pad([s.log_probs for s in samples], torch.float32)
    return Rollouts(
        sample_ids=torch.tensor([s.sample_id for s in samples]),
        prompt_tokens=prompt_tokens,
        prompt_lengths=prompt_lengths,
        response_tokens=response_tokens,
        response_lengths=response_lengths,
        response_mask=mask,
        rollout_log_probs=log_probs.masked_fill(~mask, 0.0),
        rewards=torch.tensor([outcome.reward for outcome in outcomes], dtype=torch.float32),
        finish_reasons=tuple(s.finish_reason for s in samples),
        prompts=tuple(s.prompt for s in samples),
        responses=tuple(request.response for request in requests),
        labels=tuple(s.label for s in samples),
        temperature=sampling.temperature or 1.0,
        weight_version=weight_version,
    )


def pad(sequences: Sequence[Sequence[Any]], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[batch, longest] padded with zeros on the right, and [batch] lengths; at least one column."""
    lengths = torch.tensor([len(s) for s in sequences])
    padded = torch.zeros(len(sequences), max(1, int(lengths.max())), dtype=dtype)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = torch.tensor(sequence, dtype=dtype)
    return padded, lengths
