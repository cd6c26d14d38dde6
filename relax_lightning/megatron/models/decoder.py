"""Batched decoding with a KV cache, on a policy's own weights and through its own layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from relax_lightning.megatron.cpu import cuda_stand_in
from relax_lightning.megatron.models.layout import DecodeLayout, KVCache, SequenceLayout
from relax_lightning.megatron.models.model import Layout, PolicyModel

PREFILL_TOKENS = 8192
"""Prompt tokens that go through the model at a time."""


class MegatronDecoder:
    """Decodes one batch at a time: `begin`, then `step` for every further token, `select` to drop rows.

    All ranks of a model decode the same batch together, and all get its logits.
    """

    def __init__(self, model: PolicyModel) -> None:
        self._model = model
        self._cache: KVCache | None = None
        self._positions = torch.empty(0, dtype=torch.int64)
        self._longest = 0
        self._capacity = 0

    @property
    def max_length(self) -> int:
        """Longest prompt and response together, in tokens."""
        return self._model.max_sequence_length

    @torch.no_grad()
    def begin(self, prompts: Sequence[Sequence[int]], rows: Sequence[int], capacity: int) -> Tensor:
        """Read the prompts, each once, and give every row its copy.

        Args:
            prompts: Token ids of each distinct prompt, none empty.
            rows: Prompt of each row.
            capacity: Longest prompt and response together that the cache must hold.

        Returns:
            [rows, vocabulary] logits of each row's first token.
        """
        self._model.eval()
        device = next(self._model.parameters()).device
        self._cache = self._new_cache(len(prompts), capacity, device)
        self._capacity = capacity
        index = torch.tensor(rows, device=device)
        lengths = torch.tensor([len(p) for p in prompts], device=device)
        parts = [self._prefill(prompts[a:b], a, device) for a, b in _token_slices(prompts)]
        self._cache.select(index)
        self._positions = lengths.index_select(0, index)
        self._longest = max(len(p) for p in prompts)
        return torch.cat(parts).index_select(0, index)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token a row; [rows] int64 in, [rows, vocabulary] logits of the next token out."""
        assert self._cache is not None, "begin comes first"
        self._longest = min(self._longest + 1, self._capacity)
        layout = DecodeLayout(positions=self._positions, longest=self._longest, cache=self._cache)
        logits = self._logits(tokens, layout)
        # A row that is done may stay in while others go on; it rewrites its last place rather than leave the cache.
        self._positions = (self._positions + 1).clamp(max=self._capacity - 1)
        return logits

    def select(self, rows: Tensor) -> None:
        """Keep the given rows [kept] int64, in that order."""
        assert self._cache is not None, "begin comes first"
        self._cache.select(rows)
        self._positions = self._positions.index_select(0, rows)
        self._longest = int(self._positions.max())

    def end(self) -> None:
        """Free the cache."""
        self._cache = None

    def _new_cache(self, num_rows: int, capacity: int, device: torch.device) -> KVCache:
        config = self._model.config
        heads = config.num_query_groups // config.tensor_model_parallel_size  # pyright: ignore[reportOptionalOperand]
        size, dtype = config.kv_channels, config.params_dtype
        assert size is not None
        layers = [int(layer.layer_number) - 1 for layer in self._model.decoder.layers]  # pyright: ignore[reportArgumentType]
        return KVCache(layers, num_rows, heads, capacity, size, dtype, device)

    def _prefill(self, prompts: Sequence[Sequence[int]], first_row: int, device: torch.device) -> Tensor:
        lengths = tuple(len(p) for p in prompts)
        layout = SequenceLayout(lengths=lengths, device=device, cache=self._cache, first_cache_row=first_row)
        tokens = torch.tensor([token for prompt in prompts for token in prompt], device=device)
        return self._logits(tokens, layout, layout.last_tokens)

    def _logits(self, tokens: Tensor, layout: Layout, wanted: Tensor | None = None) -> Tensor:
        """The tokens through all stages; [wanted or all tokens, vocabulary] on each of them."""
        model, groups = self._model, self._model.groups
        pipeline, config = groups.collection.pp, model.config
        with model.whole_tokens(), cuda_stand_in():
            if not groups.is_first_stage:
                shape = (len(tokens), 1, config.hidden_size)
                hidden = torch.empty(shape, dtype=config.params_dtype, device=tokens.device)
                dist.recv(hidden, group=pipeline, group_src=groups.stage - 1)
                model.set_input_tensor(hidden)
            hidden = model.forward(tokens, layout)
            if groups.is_last_stage:
                logits = model.whole_logits(hidden if wanted is None else hidden.index_select(0, wanted))
            else:
                dist.send(hidden.contiguous(), group=pipeline, group_dst=groups.stage + 1)
                shape = (len(tokens if wanted is None else wanted), model.num_rows)
                logits = torch.empty(shape, dtype=config.params_dtype, device=tokens.device)
        if groups.num_stages > 1:
            logits = logits.contiguous()
            dist.broadcast(logits, group=pipeline, group_src=groups.num_stages - 1)
        return logits


def _token_slices(prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    start, tokens = 0, 0
    for index, prompt in enumerate(prompts):
        if index > start and tokens + len(prompt) > PREFILL_TOKENS:
            yield start, index
            start, tokens = index, 0
        tokens += len(prompt)
    yield start, len(prompts)
