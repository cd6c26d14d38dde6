"""Rules of SGLang's own arguments, which come with the prefix `--sglang-`; names and types are those of 0.5.17."""

from __future__ import annotations

import json
from collections.abc import Iterator

from relax_lightning.config.engines import SGLANG_DECIDED
from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.rules import (
    CannotTranslate,
    Flags,
    LeftOut,
    NotTranslated,
    Outcome,
    Setting,
    as_text,
    scalar,
)
from relax_lightning.migrate.shell_text import Text, literal

_ENGINE = "data.rollout.engine.init_args"

_OTHER_NAMES = {
    "model": "model_path",
    "tensor_parallel_size": "tp_size",
    "tp": "tp_size",
    "decode_context_parallel_size": "dcp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "dp": "dp_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
    "expert_parallel_size": "ep_size",
    "ep": "ep_size",
    "nccl_init_addr": "dist_init_addr",
    "grpc_http_sidecar_port": "smg_http_sidecar_port",
    "fp8_gemm_backend": "fp8_gemm_runner_backend",
    "fp4_gemm_backend": "fp4_gemm_runner_backend",
    "elastic_ep_join_mode": "ep_join_mode",
    "elastic_ep_join_rank_offset": "ep_join_rank_offset",
    "speculative_draft_model": "speculative_draft_model_path",
    "hierarchical_sparse_attention_extra_config": "hisparse_config",
    "stream_output": "incremental_streaming_output",
    "nsa_prefill_backend": "dsa_prefill_backend",
    "nsa_decode_backend": "dsa_decode_backend",
    "nsa_prefill_cp_mode": "dsa_prefill_cp_mode",
    "enable_nsa_prefill_context_parallel": "enable_dsa_prefill_context_parallel",
    "enable_gdn_replayssm_spec": "enable_linear_replayssm_spec",
    "speculative_dflash_draft_window_size": "speculative_draft_window_size",
    "mamba_scheduler_strategy": "mamba_radix_cache_strategy",
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode",
    "cuda_graph_bs": "cuda_graph_bs_decode",
    "piecewise_cuda_graph_tokens": "cuda_graph_bs_prefill",
    "piecewise_cuda_graph_compiler": "cuda_graph_tc_compiler",
    "piecewise_cuda_graph_max_tokens": "cuda_graph_max_bs_prefill",
}
"""Flags whose argument has another name: aliases, and names of earlier versions."""

_CONSTANTS = {
    "enable_breakable_cuda_graph": ("cuda_graph_backend_prefill", "breakable"),
    "disable_piecewise_cuda_graph": ("cuda_graph_backend_prefill", "disabled"),
    "enforce_piecewise_cuda_graph": ("cuda_graph_backend_prefill", "tc_piecewise"),
    **{
        f"no_{name}": (name, False)
        for name in ("dcp_replicate_q_proj", "experts_shared_outer_loras", "lora_strict_loading", "dllm_fdfo")
    },
}
"""Flags without a value that stand for one of another argument."""

_GONE = ("prefill_round_robin_balance", "collect_tokens_histogram")

_LISTS = """
    numa_node gc_threshold log_requests_target uvicorn_access_log_exclude_prefixes
    tokenizer_metrics_allowed_custom_labels bucket_time_to_first_token bucket_inter_token_latency
    bucket_e2e_request_latency prompt_tokens_buckets generation_tokens_buckets flashinfer_autotune_skip_ops
    cuda_graph_bs_decode cuda_graph_bs_prefill lora_target_modules lora_paths encoder_urls encoder_register_urls
    custom_weight_loader prefill_delayer_forward_passes_buckets prefill_delayer_wait_seconds_buckets
    debug_tensor_dump_layers
"""
_OF_TEXTS = """
    prompt_tokens_buckets generation_tokens_buckets log_requests_target lora_target_modules lora_paths
    served_model_name revision dist_init_addr api_key admin_api_key
"""
_OF_JSON = """
    sidecar_args default_chat_template_kwargs preferred_sampling_params extra_metric_labels mm_process_config
    decoupled_spec_connect_endpoints limit_mm_data_per_request remote_instance_weight_loader_send_weights_group_ports
    forward_hooks cuda_graph_config
"""


def sglang(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Any argument of SGLang's own: one that the engine has too, one that it decides, or one of `server_args`."""
    written = flag.name.removeprefix("--sglang-").replace("-", "_")
    name, constant = _CONSTANTS.get(written, (_OTHER_NAMES.get(written, written), None))
    if name in _GONE:
        yield LeftOut("it has no effect in SGLang either")
    elif name == "tp_size" and "--rollout-num-gpus-per-engine" in flags:
        yield LeftOut("--rollout-num-gpus-per-engine says it")
    elif name == "api_key":
        yield LeftOut("the engine starts its server on this machine alone")
    elif name in SGLANG_DECIDED and SGLANG_DECIDED[name] is None:
        yield LeftOut("the engine sets it")
    elif (own := SGLANG_DECIDED.get(name)) is not None:
        yield Setting(f"{_ENGINE}.{own}", _value(name, flag))
    elif not name.isidentifier():
        yield NotTranslated("no argument of SGLang has this name")
    else:
        yield Setting(f"{_ENGINE}.server_args.{name}", _value(name, flag) if constant is None else constant)


def _value(name: str, flag: Flag) -> object:
    if not flag.values:
        return [] if name in _LISTS.split() else True
    if name in _OF_JSON.split():
        return _parsed(flag)
    values = [as_text(v) if name in _OF_TEXTS.split() else _true_or_false(v) for v in flag.values]
    return values if len(values) > 1 or name in _LISTS.split() else values[0]


def _parsed(flag: Flag) -> object:
    known = literal(flag.values[0]) if len(flag.values) == 1 else None
    try:
        return json.loads(known or "")
    except ValueError:
        raise CannotTranslate(
            "wanted JSON; set it by hand under data.rollout.engine.init_args.server_args"
        ) from None


def _true_or_false(value: Text) -> object:
    return {"true": True, "false": False}.get((literal(value) or "").lower(), scalar(value))
