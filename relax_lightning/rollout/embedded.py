"""The embedded engine: generates in this process, on the actor's own weights, with no copy of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relax_lightning.config import SamplingConfig
from relax_lightning.rollout.engine import Decoder, Generation, Share, Tokenizer, WeightSource
from relax_lightning.rollout.sampling import draws_at, sample_streams, sample_tokens
from relax_lightning.rollout.stopping import StopCondition, response_limits


class MegatronEngine:
    """Decodes in batches of `max_batch_size` samples and drops rows as they finish.

    The same call gives the same bits. In other company a sample has the same draws, yet its logits may differ in their
    last bits: matrix products choose their kernel by the number of rows, at bounds that differ from CPU to CPU.

    Args:
        max_batch_size: Samples decoded at a time; bounds the KV cache.
    """

    def __init__(self, max_batch_size: int = 512) -> None:
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size: wanted at least 1, got {max_batch_size}")
        self.weight_version = 0
        self._max_batch_size = max_batch_size
        self._decoder: Decoder | None = None
        self._tokenizer: Tokenizer | None = None
        self._source: WeightSource | None = None

    @property
    def share(self) -> Share:
        """That of the policy's replica, whose ranks all decode together."""
        assert self._source is not None, "attach comes first"
        return self._source.share

    def attach(self, source: WeightSource, tokenizer: Tokenizer) -> None:
        """Bind to the policy: its weights are the engine's weights."""
        self._source = source
        self._decoder = source.decoder()
        self._tokenizer = tokenizer

    def publish(self) -> int:
        """The weights are shared, so there is nothing to copy."""
        self.weight_version += 1
        return self.weight_version

    def verify(self) -> None:
        """Shared weights do not differ."""

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sample_ids: Sequence[int],
        sampling: SamplingConfig,
        seed: int,
        num_response_tokens: Sequence[int] | None = None,
    ) -> list[Generation]:
        """See `RolloutEngine.generate`."""
        assert self._decoder is not None and self._tokenizer is not None, "attach comes first"
        begun = num_response_tokens or [0] * len(prompts)
        limits = response_limits(prompts, begun, sampling.max_new_tokens, self._decoder.max_length)
        # Samples of like length decode together; the order of the answers is the order of the questions.
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers: dict[int, Generation] = {}
        for start in range(0, len(order), self._max_batch_size):
            batch = order[start : start + self._max_batch_size]
            decoding = _Decoding(self._decoder, self._tokenizer, sampling, seed)
            columns: list[list[Any]] = [
                [column[i] for i in batch] for column in (prompts, sample_ids, begun, limits)
            ]
            generations = decoding.run(*columns)
            answers.update(zip(batch, generations, strict=True))
        return [answers[i] for i in range(len(prompts))]

    def close(self) -> None:
        """Nothing to end."""


class _Decoding:
    """One batch, from prompts to responses."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, sampling: SamplingConfig, seed: int) -> None:
        self._decoder = decoder
        self._sampling = sampling
        self._seed = seed
        self._stop = StopCondition(tokenizer, sampling)

    def run(
        self, prompts: list[Any], sample_ids: list[int], begun: list[int], limits: list[int]
    ) -> list[Generation]:
        distinct = list(dict.fromkeys(tuple(p) for p in prompts))
        index = {prompt: i for i, prompt in enumerate(distinct)}
        rows = [index[tuple(p)] for p in prompts]
        capacity = max(len(p) + limit for p, limit in zip(prompts, limits, strict=True))
        try:
            logits = self._decoder.begin(distinct, rows, capacity)
            return self._decode(logits, np.array(sample_ids), np.array(begun), limits)
        finally:
            self._decoder.end()

    def _decode(
        self, logits: Tensor, sample_ids: np.ndarray, begun: np.ndarray, limits: list[int]
    ) -> list[Generation]:
        num_samples = len(sample_ids)
        tokens: list[list[int]] = [[] for _ in range(num_samples)]
        log_probs: list[list[float]] = [[] for _ in range(num_samples)]
        reasons = [""] * num_samples
        streams = sample_streams(self._seed, sample_ids)
        # Sample of each decoder row; -1 once it is done.
        rows = np.arange(num_samples)
        for position in range(max(limits)):
            sampled = np.maximum(rows, 0)
            draws = draws_at(streams[sampled], torch.from_numpy(begun[sampled] + position))
            new, new_log_probs = sample_tokens(logits, draws, self._sampling)
            for row, token, log_prob in zip(rows.tolist(), new.tolist(), new_log_probs.tolist(), strict=True):
                if row < 0:
                    continue
                tokens[row].append(token)
                log_probs[row].append(log_prob)
                if self._stop(tokens[row]):
                    reasons[row] = "stop"
                elif position + 1 == limits[row]:
                    reasons[row] = "length"
            rows = np.array([row if row >= 0 and not reasons[row] else -1 for row in rows.tolist()])
            if (rows < 0).all():
                break
            rows, new = self._drop_finished(rows, new)
            logits = self._decoder.step(new)
        return [Generation(tuple(t), tuple(p), r) for t, p, r in zip(tokens, log_probs, reasons, strict=True)]

    def _drop_finished(self, rows: np.ndarray, new: Tensor) -> tuple[np.ndarray, Tensor]:
        """Compact once an eighth of the rows is done: copying the cache each time would cost more than it saves."""
        live = np.flatnonzero(rows >= 0)
        if len(live) > len(rows) * 7 // 8:
            return rows, new
        index = torch.from_numpy(live).to(new.device)
        self._decoder.select(index)
        return rows[live], new.index_select(0, index)
