"""The embedded engine: generates in this process, on the actor's own weights, with no copy of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from relax_lightning.config import SamplingConfig
from relax_lightning.rollout.engine import Decoder, Generation, Tokenizer, WeightSource
from relax_lightning.rollout.sampling import sample_tokens, uniform_draws

MIN_ROWS = 5
"""Below this many rows a matrix product takes another kernel and rounds differently (fp32, CPU), so finished rows
stay in as ballast."""


class MegatronEngine:
    """Decodes in batches of `max_batch_size` samples and drops rows as they finish.

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

    def attach(self, source: WeightSource, tokenizer: Tokenizer) -> None:
        """Bind to the policy: its weights are the engine's weights."""
        self._decoder = source.decoder()
        self._tokenizer = tokenizer

    def publish(self) -> int:
        """The weights are shared, so there is nothing to copy."""
        self.weight_version += 1
        return self.weight_version

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Sequence[int]], sample_ids: Sequence[int], sampling: SamplingConfig, seed: int
    ) -> list[Generation]:
        """See `RolloutEngine.generate`."""
        assert self._decoder is not None and self._tokenizer is not None, "attach comes first"
        _check_room(prompts, self._decoder.max_length)
        # Samples of like length decode together; the order of the answers is the order of the questions.
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers: dict[int, Generation] = {}
        for start in range(0, len(order), self._max_batch_size):
            batch = order[start : start + self._max_batch_size]
            decoding = _Decoding(self._decoder, self._tokenizer, sampling, seed)
            generations = decoding.run([prompts[i] for i in batch], [sample_ids[i] for i in batch])
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
        self._stop = _StopCondition(tokenizer, sampling)

    def run(self, prompts: Sequence[Sequence[int]], sample_ids: Sequence[int]) -> list[Generation]:
        distinct = list(dict.fromkeys(tuple(p) for p in prompts))
        index = {prompt: i for i, prompt in enumerate(distinct)}
        rows = [index[tuple(p)] for p in prompts]
        rows += [rows[0]] * (MIN_ROWS - len(rows))
        limits = [min(self._sampling.max_new_tokens, self._decoder.max_length - len(p)) for p in prompts]
        capacity = max(len(p) + limit for p, limit in zip(prompts, limits, strict=True))
        try:
            return self._decode(self._decoder.begin(distinct, rows, capacity), np.array(sample_ids), limits)
        finally:
            self._decoder.end()

    def _decode(self, logits: Tensor, sample_ids: np.ndarray, limits: list[int]) -> list[Generation]:
        num_samples = len(sample_ids)
        tokens: list[list[int]] = [[] for _ in range(num_samples)]
        log_probs: list[list[float]] = [[] for _ in range(num_samples)]
        reasons = [""] * num_samples
        # Sample of each decoder row; -1 for ballast.
        rows = np.concatenate([np.arange(num_samples), np.full(len(logits) - num_samples, -1)])
        for position in range(max(limits)):
            draws = uniform_draws(self._seed, sample_ids[np.maximum(rows, 0)], position)
            new, new_log_probs = sample_tokens(logits, draws, self._sampling)
            for row, token, log_prob in zip(rows.tolist(), new.tolist(), new_log_probs.tolist(), strict=True):
                if row < 0:
                    continue
                tokens[row].append(token)
                log_probs[row].append(log_prob)
                reasons[row] = self._stop(tokens[row]) or ("length" if position + 1 == limits[row] else "")
            rows = np.array([row if row >= 0 and not reasons[row] else -1 for row in rows.tolist()])
            if (rows < 0).all():
                break
            rows, new = self._drop_finished(rows, new)
            logits = self._decoder.step(new)
        return [Generation(tuple(t), tuple(p), r) for t, p, r in zip(tokens, log_probs, reasons, strict=True)]

    def _drop_finished(self, rows: np.ndarray, new: Tensor) -> tuple[np.ndarray, Tensor]:
        """Compact once an eighth of the rows is done: copying the cache each time would cost more than it saves."""
        live = np.flatnonzero(rows >= 0)
        if len(rows) <= MIN_ROWS or len(live) > len(rows) * 7 // 8:
            return rows, new
        keep = np.concatenate([live, np.flatnonzero(rows < 0)[: max(0, MIN_ROWS - len(live))]])
        index = torch.from_numpy(keep).to(new.device)
        self._decoder.select(index)
        return rows[keep], new.index_select(0, index)


class _StopCondition:
    """Whether a response has ended of itself."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingConfig) -> None:
        self._tokenizer = tokenizer
        self._strings = sampling.stop
        self._longest = max((len(s) for s in sampling.stop), default=0)
        eos = tokenizer.eos_token_id
        own = [] if sampling.ignore_eos or eos is None else [eos] if isinstance(eos, int) else list(eos)
        self._token_ids = {*own, *sampling.stop_token_ids}

    def __call__(self, tokens: list[int]) -> str:
        if tokens[-1] in self._token_ids:
            return "stop"
        if not self._strings:
            return ""
        # A token may be part of a character only, so look a few tokens further back than the string is long.
        tail = self._tokenizer.decode(tokens[-(self._longest + 4) :])
        return "stop" if any(s in tail for s in self._strings) else ""


def _check_room(prompts: Sequence[Sequence[int]], max_length: int) -> None:
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {index} is empty; a response needs at least one token to follow")
        if len(prompt) >= max_length:
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens, which leaves no room for a response in the model's context "
                f"of {max_length}; set max_prompt_tokens"
            )
