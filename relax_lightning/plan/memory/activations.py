"""What forward keeps for backward, and what both take for a moment, of one micro-batch.

The method is that of Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section
4: add up what each module saves. The modules are ours, so the sums are too: RMSNorm, rotary angles applied to queries
and keys, grouped-query attention on packed tokens, SwiGLU, and a head that only response tokens pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from relax_lightning.config.model import ArchitectureConfig, ParallelConfig
from relax_lightning.plan.memory.architectures import Architecture, HybridArchitecture, trunk_of
from relax_lightning.plan.memory.parameters import RoleName
from relax_lightning.plan.memory.widths import FP32, Widths, cut, element_bytes

CHUNK_TOKENS = 2048
"""Response tokens whose logits exist at a time (megatron/heads.py: CHUNK_TOKENS)."""
_INDEX_BYTES = 16
"""Of a token: its id and its place among padded rows."""
_LOSS_BYTES = 48
"""Of a response token: what the losses keep of it (algorithms/losses.py), in fp32 and bool."""


@dataclass(frozen=True)
class Activations:
    """Bytes on one rank while a micro-batch is trained on."""

    saved: int
    """Kept from forward to backward."""
    working: int
    """The largest that comes on top at any moment: logits and their gradients, or a layer's."""

    @property
    def peak(self) -> int:
        """Both together."""
        return self.saved + self.working


@dataclass(frozen=True)
class _Microbatch:
    """What the sums depend on, besides the widths."""

    tokens: int
    responses: int
    padded: int
    element: int
    recompute: str | None
    on_gpu: bool
    sequence_ranks: int
    """Ranks that the tokens between layers are cut over: the tensor ranks under sequence parallelism."""

    @property
    def is_packed(self) -> bool:
        """Whether attention runs on packed tokens: in the flash kernel, which knows half precision only."""
        return self.on_gpu and self.element != FP32


def activations(
    architecture: Architecture,
    parallel: ParallelConfig,
    tokens: int,
    dtype: str,
    recompute: str | None,
    role: RoleName,
    *,
    response_tokens: int | None = None,
    padded_tokens: int | None = None,
    on_gpu: bool = True,
) -> Activations | None:
    """What training on micro-batches of `tokens` tokens takes, on the pipeline stage that takes most.

    With pipelining a stage holds as many micro-batches as there are stages from it to the last (1F1B: Narayanan et al.
    2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2).

    Args:
        architecture: The trunk.
        parallel: How the role is cut.
        tokens: Packed in a micro-batch, prompts and responses.
        dtype: Of weights and activations.
        recompute: None, `selective` (the core attention) or `full` (every layer).
        role: Only the actor has logits.
        response_tokens: Of `tokens`, those that pass the head; None: all.
        padded_tokens: Sequences times the longest, which attention works on in float32 and on a CPU; None: no padding.
        on_gpu: A GPU has fused norms and SwiGLU, and in bfloat16 attention without padding.

    Returns:
        None for a hybrid model: its delta-net kernels are not ours to count.

    Raises:
        ValueError: Heads, widths or layers do not divide over the ranks.
    """
    if isinstance(architecture, HybridArchitecture):
        return None
    a = trunk_of(architecture)
    widths = Widths.of(a, parallel)
    responses = tokens if response_tokens is None else response_tokens
    batch = _Microbatch(
        tokens=tokens // parallel.context,
        responses=responses // parallel.context,
        padded=(padded_tokens or tokens) // parallel.context,
        element=element_bytes(dtype),
        recompute=recompute,
        on_gpu=on_gpu,
        sequence_ranks=parallel.tensor if parallel.sequence else 1,
    )
    num_stages = parallel.pipeline
    trunk = _trunk(a, widths, batch, cut("num_layers", a.num_layers, num_stages, "pipeline"))
    stages = [Activations(trunk.saved * (num_stages - n), trunk.working) for n in range(num_stages)]
    is_tied = a.tie_word_embeddings and role == "actor" and num_stages == 1
    stages[-1] = _with_head(stages[-1], widths, batch, role, is_tied)
    stages[0] = _with_embedding(stages[0], widths, batch, is_tied)
    return max(stages, key=lambda found: found.peak)


def _trunk(a: ArchitectureConfig, widths: Widths, batch: _Microbatch, num_layers: int) -> Activations:
    """The layers of a stage, for one micro-batch."""
    layer, residual = _layer(a, widths, batch), _residual(widths, batch)
    saved = batch.tokens * _INDEX_BYTES + num_layers * (residual if batch.recompute == "full" else layer)
    if batch.recompute is None:
        # Cosine and sine of the rotary angles: one for all layers, and for queries and keys.
        saved += batch.tokens * 2 * batch.element * widths.head
    # In backward: gradients of the residual stream, of gate and of up; the layer itself where it is recomputed; and the
    # whole of what sequence parallelism gathers.
    working = residual + 2 * batch.element * widths.ffn * batch.tokens
    if batch.recompute == "full":
        working += layer
    if batch.sequence_ranks > 1:
        working += residual * batch.sequence_ranks
    return Activations(saved, working)


def _with_head(
    trunk: Activations, widths: Widths, batch: _Microbatch, role: RoleName, is_tied: bool
) -> Activations:
    """The last stage."""
    saved = trunk.saved + _norm(widths.hidden, 1, batch) * batch.tokens // batch.sequence_ranks
    saved += batch.responses * _LOSS_BYTES
    if role == "critic":
        return Activations(saved + batch.responses * FP32 * widths.hidden, trunk.working)
    logits = _logits(widths, batch)
    saved += logits.saved + batch.responses * batch.element * widths.hidden
    # A tied output layer's gradient waits for the embedding's until backward ends.
    waiting = _embedding_gradient(widths, batch) if is_tied else 0
    return Activations(saved, max(logits.working, trunk.working + waiting))


def _with_embedding(stage: Activations, widths: Widths, batch: _Microbatch, is_tied: bool) -> Activations:
    """The first stage, which ends backward with the embedding's gradient; when tied, the output layer's and the sum."""
    at_end = (3 if is_tied else 1) * _embedding_gradient(widths, batch)
    return Activations(stage.saved, max(stage.working, at_end - stage.saved))


def _embedding_gradient(widths: Widths, batch: _Microbatch) -> int:
    return batch.element * widths.vocabulary * widths.hidden


def _residual(widths: Widths, batch: _Microbatch) -> int:
    return batch.element * widths.hidden * batch.tokens // batch.sequence_ranks


def _layer(a: ArchitectureConfig, widths: Widths, batch: _Microbatch) -> int:
    """Bytes that one layer saves: two norms and what they give to a projection, attention, SwiGLU."""
    norms = 2 * _norm(widths.hidden, 1, batch) * batch.tokens // batch.sequence_ranks
    # Gate and up together, and the product; unfused also silu(gate) and a copy of up.
    ffn = (3 if batch.on_gpu else 5) * batch.element * widths.ffn * batch.tokens
    return norms + 2 * _residual(widths, batch) + _attention(a, widths, batch) + ffn


def _norm(width: int, rows: int, batch: _Microbatch) -> int:
    """Bytes a token of an RMSNorm (aten's _fused_rms_norm and rms_norm_composite).

    The input and a reciprocal root a row; unfused, the input and its normalized form are both fp32.
    """
    return FP32 * rows + (batch.element * width if batch.on_gpu else 2 * FP32 * width)


def _attention(a: ArchitectureConfig, widths: Widths, batch: _Microbatch) -> int:
    """Bytes from the projection of queries, keys and values to the input of the output projection."""
    element, tokens = batch.element, batch.tokens
    # Keys and values are repeated for the query heads that share them, except in the flash kernel.
    repeats = widths.heads != widths.groups and not batch.is_packed and batch.recompute != "selective"
    # Values are a view of the whole projection, which stays as long as they do; so are the inputs of norms that need no
    # conversion to fp32.
    is_view = a.qk_layernorm and (batch.on_gpu or element == FP32)
    per_token = 0 if repeats and not is_view else element * widths.qkv
    if a.qk_layernorm:
        per_token += _qk_norms(widths, batch, is_view)
    # What attention gives, and both rotated. What is recomputed begins before the rotation: without a norm there,
    # keys are still a view of the projection, and queries are one unless Megatron takes them out of their groups.
    per_token += element * (2 * widths.query + widths.key)
    if batch.recompute == "selective" and not a.qk_layernorm:
        per_token -= element * (widths.key + (widths.query if widths.heads == widths.groups else 0))
    if batch.recompute == "selective":
        return per_token * tokens
    if batch.is_packed:
        return (per_token + FP32 * widths.heads) * tokens
    if repeats:
        per_token += element * (2 * widths.query - widths.key)
    in_padding = FP32 * widths.heads
    if batch.padded != tokens:
        in_padding += 4 * element * widths.query
    return per_token * tokens + in_padding * batch.padded


def _qk_norms(widths: Widths, batch: _Microbatch, is_view: bool) -> int:
    """Bytes a token beside the projection itself."""
    both = FP32 * (widths.query + widths.key)
    kept = FP32 * (widths.heads + widths.groups) + (0 if batch.on_gpu else both)
    if not is_view:
        return kept + both
    # Queries lie between keys and values, group by group, and are copied together where a group has several heads.
    return kept + (batch.element * widths.query if 1 < widths.groups < widths.heads else 0)


def _logits(widths: Widths, batch: _Microbatch) -> Activations:
    """Log-probs and entropy of the response tokens (megatron/heads.py).

    Up to one chunk keeps its logits; more are computed again chunk by chunk.
    """
    chunk = min(batch.responses, CHUNK_TOKENS)
    is_chunked = batch.responses > chunk
    logits = batch.element * widths.vocabulary * chunk
    saved = 0 if is_chunked else logits
    # Logits and their gradient; where nothing is fused also five fp32 tensors and the place of the choice.
    at_once = 2 * logits if batch.on_gpu else logits + (5 * FP32 + 1) * widths.vocabulary * chunk
    gradient = _embedding_gradient(widths, batch)
    in_softmax = at_once + (gradient if is_chunked else 0)
    in_gradient = logits + (2 if is_chunked else 1) * gradient
    return Activations(saved, max(in_softmax, in_gradient) - saved)
