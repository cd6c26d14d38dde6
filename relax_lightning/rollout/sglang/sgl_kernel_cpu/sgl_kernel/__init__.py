"""Stands for SGLang's compiled package `sgl_kernel` on a machine without CUDA.

It has the names that SGLang's CPU path imports, in plain torch. `torch.ops.sgl_kernel` stays empty, so SGLang's own
probes find no compiled operators and its torch fallbacks run. Only `relax_lightning.rollout.sglang.server` puts this
folder on the path, and only where there is no CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

__version__ = "0.0.0+torch"


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write each request's new cache slots into its row.

    Args:
        req_pool_indices: [requests] row of each request.
        req_to_token: [rows, longest] slot of each position, written in place.
        start_offset: [requests] first position to write.
        end_offset: [requests] position after the last one to write.
        out_cache_loc: [tokens] slots of all requests, one after the other.
        pool_len: Width of a row; rows know it themselves.
    """
    for row, start, end, slots in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[slots].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The reverse of `assign_req_to_token_pool_cpu`: read the slots of each request's span into `out_cache_loc`."""
    for row, start, end, slots in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[slots] = req_to_token[row, start:end].to(out_cache_loc.dtype)


def _spans(rows: Tensor, starts: Tensor, ends: Tensor) -> list[tuple[int, int, int, slice]]:
    spans, position = [], 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        spans.append((row, start, end, slice(position, position + end - start)))
        position += end - start
    return spans


def _absent(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} is compiled code and this machine has no CUDA")

    return refuse


# Imported beside the two above by features that are off: speculative decoding and moving the KV cache.
copy_all_layer_kv_cache_cpu = _absent("copy_all_layer_kv_cache_cpu")
assign_draft_cache_locs_contiguous_cpu = _absent("assign_draft_cache_locs_contiguous_cpu")
build_draft_decode_metadata_cpu = _absent("build_draft_decode_metadata_cpu")
build_tree_kernel_efficient_cpu = _absent("build_tree_kernel_efficient_cpu")
fill_accept_out_cache_loc_cpu = _absent("fill_accept_out_cache_loc_cpu")
fill_bonus_tokens_cpu = _absent("fill_bonus_tokens_cpu")
rotate_input_ids_cpu = _absent("rotate_input_ids_cpu")
verify_tree_greedy_cpu = _absent("verify_tree_greedy_cpu")
