"""What SGLang is started with: defaults for GPU and CPU, and the user's own on top, under the names that it knows."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

from relax_lightning.config.engines import SGLANG_DECIDED

CONTEXT_SLACK = 8
"""SGLang keeps the last few places of its context free; our responses may end at the model's last one."""

KV_CACHE_BYTES = 2**30
"""Of the engine on a CPU; samples that do not fit wait."""

NUM_RESPONSE_TOKENS = "num_response_tokens"
"""A request's custom parameter: how many of its tokens belong to the response already."""

_OTHER_NAMES = {
    "cuda_graph_max_bs_decode": "cuda_graph_max_bs",
    "disable_cuda_graph": "disable_decode_cuda_graph",
}
"""Names of arguments in 0.5.17, and what other versions call them."""

_GPU = {
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "enable_memory_saver": True,
    "disable_prefill_cuda_graph": True,
    "cuda_graph_max_bs_decode": 256,
}
_CPU = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
}


def check_server_args(server_args: dict[str, Any]) -> None:
    """Refuse arguments that the engine sets itself.

    Raises:
        ValueError: Names the key of ours to use instead.
    """
    for name in server_args:
        if name in SGLANG_DECIDED:
            own = SGLANG_DECIDED[name]
            change = f"use init_args.{own}" if own else "leave it out, the engine sets it"
            raise ValueError(
                f"data.rollout.engine.init_args.server_args: wanted no {name}, got {server_args[name]!r}; {change}"
            )


def server_arguments(
    model: dict[str, Any], *, on_gpu: bool, tensor_parallel_size: int, has_tokenizer: bool
) -> dict[str, Any]:
    """Arguments that follow from the machine and the model.

    Args:
        model: Its `config.json`.
        on_gpu: Whether the server runs on a GPU.
        tensor_parallel_size: GPUs or processes of the engine.
        has_tokenizer: Whether a tokenizer lies beside the `config.json`.
    """
    arguments = {
        "tp_size": tensor_parallel_size,
        "dtype": model["torch_dtype"],
        "context_length": model["max_position_embeddings"] + CONTEXT_SLACK,
        # Every weight comes from the policy, by a publication.
        "load_format": "dummy",
        "skip_tokenizer_init": not has_tokenizer,
        "skip_server_warmup": True,
        # Else the scheduler spins on a core while the roles train.
        "sleep_on_idle": True,
        "log_level_http": "warning",
        **(_GPU if on_gpu else _CPU),
    }
    if not on_gpu:
        heads_bytes = 2 * model["num_key_value_heads"] * model["head_dim"] * 4
        num_tokens = KV_CACHE_BYTES // (model["num_hidden_layers"] * heads_bytes)
        arguments["max_total_tokens"] = min(max(num_tokens, arguments["context_length"]), 2**18)
    return arguments


def server_environment(*, on_gpu: bool, tensor_parallel_size: int) -> dict[str, str]:
    """Environment variables of the server besides the process's own."""
    environment = {
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if on_gpu:
        return environment | {"SGLANG_IS_FLASHINFER_AVAILABLE": "false"}
    # Idle threads spin: on two cores one thread a process is thirty times as fast as the default.
    return environment | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(tensor_parallel_size))),
        # Where NCCL can be loaded, SGLang takes it for communication between CPU processes too.
        "SGLANG_NCCL_SO_PATH": "/nonexistent",
    }


def known_arguments(
    defaults: dict[str, Any], chosen: dict[str, Any], known: Collection[str]
) -> dict[str, Any]:
    """The arguments under the names of the installed version.

    Args:
        defaults: Ours, by their names in 0.5.17; one that the version has under no name is left out.
        chosen: The user's; each must be known.
        known: Names of the installed version.

    Raises:
        ValueError: A chosen argument is unknown.
    """
    renamed = {
        name if name in known else _OTHER_NAMES.get(name, name): value for name, value in defaults.items()
    }
    for name in chosen:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            change = f"did you mean `{near[0]}`?" if near else "leave it out"
            raise ValueError(
                f"data.rollout.engine.init_args.server_args: wanted an argument of SGLang, got {name!r}; {change}"
            )
    return {name: value for name, value in renamed.items() if name in known} | chosen
