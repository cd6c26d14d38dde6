"""What SGLang is started with, by machine and version, and which arguments are refused."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from relax_lightning.rollout.sglang.arguments import known_arguments, server_arguments
from relax_lightning.rollout.sglang.engine import SGLangEngine


def test_arguments_follow_the_version(tiny_actor: Any) -> None:
    on_gpu = server_arguments(tiny_actor.hf_config(), on_gpu=True, tensor_parallel_size=2, has_tokenizer=True)
    newest = known_arguments(on_gpu, {}, {*on_gpu})
    assert newest == on_gpu
    assert (newest["cuda_graph_max_bs_decode"], newest["tp_size"], newest["enable_memory_saver"]) == (
        256,
        2,
        True,
    )
    older = {*on_gpu, "cuda_graph_max_bs", "chunked_prefill_size"} - {
        "cuda_graph_max_bs_decode",
        "disable_prefill_cuda_graph",
    }
    arguments = known_arguments(on_gpu, {"chunked_prefill_size": 4096, "grammar_backend": "xgrammar"}, older)
    assert arguments["cuda_graph_max_bs"] == 256
    assert (arguments["chunked_prefill_size"], arguments["grammar_backend"]) == (4096, "xgrammar")
    assert not {"cuda_graph_max_bs_decode", "disable_prefill_cuda_graph"} & arguments.keys()
    with pytest.raises(
        ValueError, match="wanted an argument of SGLang, got 'chunk_prefill_size'; did you mean `chunked"
    ):
        known_arguments(on_gpu, {"chunk_prefill_size": 1}, older)
    on_cpu = server_arguments(
        tiny_actor.hf_config(), on_gpu=False, tensor_parallel_size=1, has_tokenizer=False
    )
    # 3 layers, keys and values of 2 heads of 32 numbers of 4 bytes: more than the cap of 2**18 tokens fit in 1 GiB.
    assert on_cpu["max_total_tokens"] == 2**18
    assert (on_cpu["device"], on_cpu["dtype"], on_cpu["context_length"]) == ("cpu", "float32", 136)


def test_arguments_that_are_ours_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"server_args: wanted no tp_size, got 2; use init_args\.tensor_parallel_size"
    ):
        SGLangEngine(server_args={"tp_size": 2})
    with pytest.raises(ValueError, match="wanted no load_format, got 'auto'; leave it out"):
        SGLangEngine(server_args={"load_format": "auto"})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package sglang, .*; install relax-lightning\[sglang\]"):
        SGLangEngine()
    assert "sglang" not in sys.modules
