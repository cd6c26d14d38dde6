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

from relax_lightning.batch import Prompts, Rollouts
from relax_lightning.config import EngineConfig, PromptsConfig, RolloutConfig, SamplingConfig
from relax_lightning.data.endless import EndlessPrompts
from relax_lightning.data.prompts import PromptDataset, PromptLoader
from relax_lightning.data.tokenizer import load_tokenizer
from relax_lightning.import_path import import_object
from relax_lightning.peers import ALONE
from relax_lightning.rewards.records import RewardError, RewardRequest
from relax_lightning.rewards.workers import RewardWorkers
from relax_lightning.rollout.engine import Generation, RolloutEngine

ENGINES = {
    "MegatronEngine": "relax_lightning.rollout.megatron_engine.MegatronEngine",
    "SGLangEngine": "relax_lightning.rollout.sglang_engine.SGLangEngine",
}


@dataclass(frozen=True)
class Scores:
    """What the statistics of generation need of each sample, all [samples] float64."""

    rewards: Tensor
    lengths: Tensor
    truncated: Tensor
    untrainable: Tensor

    @classmethod
    def of(cls, rollouts: Rollouts) -> Scores:
        """The scores of a round of generation."""
        untrainable = ~rollouts.response_mask.any(1)
        columns = (rollouts.rewards, rollouts.response_lengths, rollouts.truncated, untrainable)
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
            "response/untrainable_fraction": float(self.untrainable.mean()),
        }


class RolloutDataModule(LightningDataModule):
    """Prompts, the rollout engine and the reward.

    Args:
        config: The keys under `data.rollout`.
        tokenizer: Directory or import path of the tokenizer.
        seed: Of the order of prompts and of every draw.
        max_context: Longest prompt and response together, in tokens; prompts that leave no room are dropped.
    """

    def __init__(
        self, config: RolloutConfig, *, tokenizer: str, seed: int, max_context: int | None = None
    ) -> None:
        super().__init__()
        assert config.batch_size is not None and config.reward is not None
        self._config = config
        self._tokenizer_source = tokenizer
        self._seed = seed
        self._max_context = max_context
        self._batch_size = config.batch_size
        self.samples_per_iteration = config.batch_size * config.n_samples_per_prompt
        self.run_folder: str | Path = "."
        self.peers = ALONE
        """All processes of the job; each generates its share, and the first one rewards."""
        self.tokenizer: Any = None
        self.engine: RolloutEngine
        self._train: PromptDataset | None = None
        self._validation: dict[str, PromptDataset] = {}
        self._reward: RewardWorkers | None = None

    def setup(self, stage: str) -> None:
        """Everything that can be wrong with data, reward or engine comes out here, before a model is built."""
        if self.tokenizer is not None:
            return
        self.tokenizer = load_tokenizer(self._tokenizer_source)
        if stage == "fit":
            assert self._config.train is not None
            self._train = self._load("train", self._config.train)
        self._validation = {
            name: self._load(name, config) for name, config in self._config.validation.items()
        }
        self.engine = _build_engine(self._config.engine)
        assert self._config.reward is not None
        if self.peers.is_first:
            self._reward = RewardWorkers(self._config.reward)
            self._reward.__enter__()

    def _load(self, name: str, config: PromptsConfig) -> PromptDataset:
        sampling = config.sampling or self._config.sampling
        room = None if self._max_context is None else self._max_context - sampling.max_new_tokens
        limits = [limit for limit in (config.max_prompt_tokens, room) if limit is not None]
        data = PromptDataset.load(config, self.tokenizer, max_prompt_tokens=min(limits, default=None))
        if data.num_dropped:
            total = len(data) + data.num_dropped
            rank_zero_warn(
                f"prompts {name}: {data.num_dropped} of {total} are longer than {min(limits)} tokens and were dropped"
            )
        return data

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
        """
        config = self._config
        seed = mix_seed(self._seed, iteration)
        rollouts = self._generate(
            prompts, config.sampling, config.n_samples_per_prompt, seed, f"iter_{iteration:07d}"
        )
        if config.shuffle_rewards:
            order = torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(seed))
            rollouts = replace(rollouts, rewards=rollouts.rewards[order])
        return rollouts

    def evaluate(self, prompts: Prompts, index: int) -> tuple[str, Scores]:
        """Name of the validation set at `index`, and the scores of one batch of it.

        The draws depend on the set and the prompt, never on the iteration.
        """
        name = list(self._validation)[index]
        config = self._config.validation[name]
        seed = mix_seed(self._seed, zlib.crc32(name.encode()))
        sampling = config.sampling or self._config.sampling
        rollouts = self._generate(prompts, sampling, config.n_samples_per_prompt, seed, f"val_{name}")
        return name, Scores.of(rollouts)

    def _generate(
        self, prompts: Prompts, sampling: SamplingConfig, num_samples: int, seed: int, dump_name: str
    ) -> Rollouts:
        rows = [row for row in range(len(prompts)) for _ in range(num_samples)]
        sample_ids = [prompts.ids[row] * num_samples + n % num_samples for n, row in enumerate(rows)]
        token_ids = [prompts.token_ids[row] for row in rows]
        generations = self._generations(token_ids, sample_ids, sampling, seed)
        responses = [self.tokenizer.decode(g.token_ids, skip_special_tokens=True) for g in generations]
        rewards = self.peers.on_first(lambda: self._score(prompts, rows, sample_ids, responses, dump_name))
        return _rollouts(prompts, rows, sample_ids, generations, responses, rewards, sampling, self.engine)

    def _generations(
        self, token_ids: Sequence[Sequence[int]], sample_ids: list[int], sampling: SamplingConfig, seed: int
    ) -> list[Generation]:
        """A response for each sample: every engine generates its share, and all processes learn all of them."""
        share = self.engine.share
        rows = share.rows(len(sample_ids))

        def generate() -> tuple[int, list[Generation]] | None:
            if not share.generates or not rows:
                return None
            ids = [sample_ids[row] for row in rows]
            answers = self.engine.generate([token_ids[row] for row in rows], ids, sampling, seed)
            return (share.index, answers) if share.reports else None

        parts = self.peers.collect(generate) if share.is_alone else self.peers.gather(generate())
        of_engine = dict(part for part in parts if part is not None)
        return [generation for _, answers in sorted(of_engine.items()) for generation in answers]

    def _score(
        self, prompts: Prompts, rows: list[int], sample_ids: list[int], responses: list[str], dump_name: str
    ) -> list[float]:
        assert self._reward is not None
        requests = [
            RewardRequest(sample_id, prompts.texts[row], response, prompts.labels[row], prompts.metadata[row])
            for row, sample_id, response in zip(rows, sample_ids, responses, strict=True)
        ]
        try:
            return [outcome.reward for outcome in self._reward.score(requests)]
        except RewardError as error:
            path = Path(self.run_folder) / "failed_rewards" / f"{dump_name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(vars(r), default=str) + "\n" for r in requests))
            error.add_note(f"All samples of this round are kept in {path}")
            raise


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
    prompts: Prompts,
    rows: list[int],
    sample_ids: list[int],
    generations: Sequence[Generation],
    responses: Sequence[str],
    rewards: Sequence[float],
    sampling: SamplingConfig,
    engine: RolloutEngine,
) -> Rollouts:
    prompt_tokens, prompt_lengths = pad([prompts.token_ids[row] for row in rows], torch.int64)
    response_tokens, response_lengths = pad([g.token_ids for g in generations], torch.int64)
    log_probs, _ = pad([g.log_probs for g in generations], torch.float32)
    return Rollouts(
        sample_ids=torch.tensor(sample_ids),
        prompt_tokens=prompt_tokens,
        prompt_lengths=prompt_lengths,
        response_tokens=response_tokens,
        response_lengths=response_lengths,
        response_mask=torch.arange(response_tokens.shape[1])[None] < response_lengths[:, None],
        rollout_log_probs=log_probs,
        rewards=torch.tensor(rewards, dtype=torch.float32),
        finish_reasons=tuple(g.finish_reason for g in generations),
        prompts=tuple(prompts.texts[row] for row in rows),
        responses=tuple(responses),
        labels=tuple(prompts.labels[row] for row in rows),
        temperature=sampling.temperature or 1.0,
        weight_version=engine.weight_version,
    )


def pad(sequences: Sequence[Sequence[Any]], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[batch, longest] padded with zeros on the right, and [batch] lengths; at least one column."""
    lengths = torch.tensor([len(s) for s in sequences])
    padded = torch.zeros(len(sequences), max(1, int(lengths.max())), dtype=dtype)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = torch.tensor(sequence, dtype=dtype)
    return padded, lengths
