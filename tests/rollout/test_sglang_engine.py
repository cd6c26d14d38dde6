"""What SGLangEngine does beyond the contract of every engine: its server's life, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from relax_lightning.config import SamplingConfig
from relax_lightning.rollout import sglang_engine as module
from relax_lightning.rollout import sglang_server
from relax_lightning.rollout.sglang_arguments import known_arguments, server_arguments
from relax_lightning.rollout.sglang_engine import SGLangEngine
from relax_lightning.rollout.weight_sync import ByValue, SharedMemory, publish_weights
from tests.rollout.fake_sglang import IDLE, SUCCESS, FakeServer
from tests.rollout.letters import Letters

PROMPTS = [[1, 2, 3], [40, 41], [7]] * 2
SAMPLING = SamplingConfig(max_new_tokens=12)
FAKE = Path(__file__).with_name("fake_sglang.py")


def generate(engine: SGLangEngine, sampling: SamplingConfig = SAMPLING) -> Any:
    return engine.generate(PROMPTS, range(len(PROMPTS)), sampling, seed=4)


def beside(engine: SGLangEngine, source: Any, **arguments: Any) -> SGLangEngine:
    """A second engine, on the server of the first one by its url."""
    client = engine._client
    key = client._headers["Authorization"].removeprefix("Bearer ")
    other = SGLangEngine(url=client.url, api_key=key, **arguments)
    other.attach(source, Letters())
    return other


class Altered:
    """A policy whose weights reach the engine wrong, the first time they are asked for."""

    def __init__(self, actor: Any, name: str, *, missing: bool = False) -> None:
        self._actor = actor
        self._name = name
        self._missing = missing
        self._asked = False

    def hf_config(self) -> dict[str, Any]:
        return self._actor.hf_config()

    def hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._actor.hf_weights():
            if name != self._name:
                yield name, tensor
            elif not self._missing:
                yield name, tensor if self._asked else tensor + 1e-7 * tensor.abs().max()
        self._asked = True


# --- a real server ------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(sglang_engine: SGLangEngine) -> Iterator[SGLangEngine]:
    sglang_engine.publish()
    yield sglang_engine
    # Other engines publish to the same server.
    sglang_engine.publish()


def test_a_wrong_and_a_missing_tensor_are_named(engine: SGLangEngine, tiny_actor: Any) -> None:
    engine.verify()
    # SGLang joins the three projections; the joined one is what differs.
    wrong = beside(engine, Altered(tiny_actor, "model.layers.1.self_attn.k_proj.weight"))
    wrong.publish()
    with pytest.raises(
        RuntimeError, match=r"publication 1 left 1 tensors .*: model.layers.1.self_attn.qkv_proj.weight$"
    ):
        wrong.verify()
    wrong.verify()
    missing = beside(engine, Altered(tiny_actor, "model.norm.weight", missing=True))
    missing.publish()
    with pytest.raises(RuntimeError, match=r"left 1 tensors .*: model.norm.weight$"):
        missing.verify()


@pytest.mark.parametrize("transport", [SharedMemory(), ByValue()], ids=["shared", "by value"])
def test_many_small_buckets_bring_the_same_weights(
    engine: SGLangEngine, tiny_actor: Any, transport: Any
) -> None:
    before, client = generate(engine), engine._client
    sums = client.weight_checksums()
    client.scramble_weights()
    assert all(
        client.weight_checksums()[0][name] != value for name, value in sums[0].items() if "weight" in name
    )
    settings = {"transport": transport, "num_receivers": 1, "bucket_bytes": 20_000}
    publish_weights(tiny_actor.hf_weights(), client, engine.weight_version, **settings)
    assert client.weight_checksums() == sums
    assert generate(engine) == before

    # A publication that breaks off leaves no version that a generation may have.
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        for number, named in enumerate(tiny_actor.hf_weights()):
            yield named
            assert number < 10, "the policy broke off"

    with pytest.raises(AssertionError, match="broke off"):
        publish_weights(broken(), client, engine.weight_version, **settings)
    with pytest.raises(RuntimeError, match=r"generated with weights (\d+)-incomplete, published are \1"):
        generate(engine)


def test_another_publisher_is_noticed(engine: SGLangEngine, tiny_actor: Any) -> None:
    other = beside(engine, tiny_actor)
    assert other.publish() == 1
    answers = generate(other)
    with pytest.raises(RuntimeError, match=r"generated with weights 1, published are .*another run"):
        generate(engine)
    engine.publish()
    assert generate(engine) == answers
    with pytest.raises(RuntimeError, match="published are 1"):
        generate(other)
    other.close()
    assert generate(engine) == answers


def test_an_answer_that_takes_too_long(engine: SGLangEngine, tiny_actor: Any) -> None:
    hasty = beside(engine, tiny_actor)
    hasty.publish()
    hasty._client._timeout_seconds = 0.05
    with pytest.raises(
        TimeoutError, match=r"no answer to /generate in 0.05 s; raise .*timeout_seconds, or lower"
    ):
        hasty.generate([[1]] * 64, range(64), SamplingConfig(max_new_tokens=120, ignore_eos=True), seed=0)
    # Nothing is left running: memory can only be released by an idle server.
    engine.publish()
    engine.offload(["kv_cache"])
    engine.onload(["kv_cache"])
    assert len(generate(engine)) == len(PROMPTS)


def test_memory_leaves_and_comes_back(engine: SGLangEngine) -> None:
    before = generate(engine)
    engine.offload(["kv_cache", "weights"])
    engine.offload(["weights"])
    with pytest.raises(AssertionError, match="onload kv_cache, weights before"):
        generate(engine)
    with pytest.raises(AssertionError, match="onload the weights' memory"):
        engine.publish()
    engine.onload(["weights"])
    engine.publish()
    with pytest.raises(AssertionError, match="onload kv_cache before"):
        generate(engine)
    engine.onload(["weights", "kv_cache", "cuda_graph"])
    assert generate(engine) == before
    engine.offload(["weights"])
    engine.onload(["weights"])
    with pytest.raises(AssertionError, match="publish before a generation"):
        generate(engine)


def test_stop_strings_and_ignored_ends(engine: SGLangEngine) -> None:
    free = generate(engine, SamplingConfig(max_new_tokens=12, ignore_eos=True))
    token = free[0].token_ids[5]
    cut = generate(engine, SamplingConfig(max_new_tokens=12, ignore_eos=True, stop_token_ids=[token]))[0]
    end = free[0].token_ids.index(token) + 1
    assert (cut.token_ids, cut.log_probs) == (free[0].token_ids[:end], free[0].log_probs[:end])
    assert cut.finish_reason == "stop"


def test_a_killed_scheduler_is_replaced(engine: SGLangEngine) -> None:
    before, version = generate(engine), engine.weight_version
    assert engine._server is not None
    family = psutil.Process(engine._server.process.pid)
    children = family.children(recursive=True)
    scheduler = next(p for p in children if "scheduler" in " ".join(p.cmdline()))
    engine.offload(["cuda_graph"])
    engine.onload(["cuda_graph"])
    scheduler.send_signal(signal.SIGKILL)
    with pytest.warns(
        UserWarning, match=r"SGLang died during generation \(killed by SIGKILL; its log is .*\); it is"
    ):
        assert generate(engine) == before
    assert engine.weight_version == version
    assert_gone([family, *children])
    engine.verify()


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs([p for p in processes if p.is_running()], timeout=20)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


# --- a server that only answers -----------------------------------------------------------------------------------


def answer(
    tokens: list[int], reason: dict[str, Any], version: str = "1", log_prob: float | None = -0.5
) -> dict[str, Any]:
    triples = [[log_prob, token, None] for token in tokens]
    about = {"finish_reason": reason, "weight_version": version, "output_token_logprobs": triples}
    return {"output_ids": tokens, "meta_info": about}


def attached(server: FakeServer, actor: Any) -> SGLangEngine:
    engine = SGLangEngine(url=server.url)
    engine.attach(actor, Letters())
    return engine


def test_newer_versions_ask_for_a_session(tiny_actor: Any) -> None:
    with FakeServer(IDLE) as old:
        attached(old, tiny_actor).publish()
    sessions = {"/begin_weight_update": SUCCESS, "/end_weight_update": SUCCESS}
    with FakeServer({**IDLE, **sessions}) as new:
        engine = attached(new, tiny_actor)
        engine.publish()
    assert [path for path, _ in old.requests[2:]] == ["/begin_weight_update", "/update_weights_from_tensor"]
    assert [path for path, _ in new.requests] == [
        "/server_info",
        "/flush_cache",
        "/begin_weight_update",
        "/update_weights_from_tensor",
        "/end_weight_update",
    ]
    _, body = new.requests[3]
    assert (body["load_format"], body["weight_version"], body["flush_cache"]) == (
        "flattened_bucket",
        "1",
        True,
    )
    assert len(body["serialized_named_tensors"]) == 1


@pytest.mark.parametrize(
    "refusal", [{"success": False, "message": "no room"}, [False, "no room"], (400, {"message": "no room"})]
)
def test_refused_weights_are_an_error(tiny_actor: Any, refusal: Any) -> None:
    sessions = {"/begin_weight_update": SUCCESS, "/end_weight_update": SUCCESS}
    with FakeServer({**IDLE, "/update_weights_from_tensor": refusal, **sessions}) as server:
        engine = attached(server, tiny_actor)
        with pytest.raises(RuntimeError, match=r"SGLang refused /update_weights_from_tensor.*no room"):
            engine.publish()
    assert engine.weight_version == 0
    # The session is closed all the same: the next one would be refused.
    assert server.requests[-1][0] == "/end_weight_update"


def test_memory_moves_by_tag_and_once(tiny_actor: Any) -> None:
    busy = iter([(400, {}), (400, {})])
    answers = {
        **IDLE,
        "/flush_cache": lambda body: next(busy, {}),
        **{key: {} for key in ("/release_memory_occupation", "/resume_memory_occupation")},
    }
    with FakeServer(answers) as server:
        engine = attached(server, tiny_actor)
        engine.offload(["cuda_graph", "kv_cache", "weights"])
        engine.offload(["weights"])
        engine.onload(["weights"])
        engine.publish()
        engine.onload(["kv_cache", "cuda_graph", "weights"])
    # Three times it is asked whether it is idle before memory is released, and once before weights are sent.
    assert [path for path, _ in server.requests].count("/flush_cache") == 4
    moves = [(path.split("_")[0], body["tags"]) for path, body in server.requests if "memory" in path]
    assert moves == [
        ("/release", ["weights", "kv_cache", "cuda_graph"]),
        ("/resume", ["weights"]),
        ("/resume", ["kv_cache", "cuda_graph"]),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            answer([3], {"type": "abort", "message": "out of KV cache"}),
            "ended sample 70 with abort: out of KV cache",
        ),
        (answer([3], {"type": "length"}, version="0"), "generated with weights 0, published are 1"),
        (answer([3], {"type": "length"}, log_prob=None), "gave sample 70 a log-prob that is not finite"),
    ],
)
def test_an_answer_that_cannot_be_learned_from(tiny_actor: Any, given: Any, message: str) -> None:
    with FakeServer({**IDLE, "/generate": [given]}) as server:
        engine = attached(server, tiny_actor)
        engine.publish()
        with pytest.raises(RuntimeError, match=message):
            engine.generate([[1, 2]], [70], SAMPLING, seed=0)


def test_a_wrong_url_and_a_server_that_goes(tiny_actor: Any) -> None:
    with (
        FakeServer({"/update_weights_from_tensor": SUCCESS}) as other,
        pytest.raises(
            ValueError, match=rf"url: no SGLang server answers at {other.url} .*has no /server_info"
        ),
    ):
        SGLangEngine(url=other.url)
    with pytest.raises(ValueError, match=rf"no SGLang server answers at {other.url} .*Connection refused"):
        SGLangEngine(url=other.url)
    with FakeServer(IDLE) as server:
        with pytest.raises(
            ValueError, match="wanted no arguments of a server beside it, got mem_fraction_static"
        ):
            SGLangEngine(url=server.url, mem_fraction_static=0.5)
        engine = attached(server, tiny_actor)
        engine.publish()
    with pytest.raises(RuntimeError, match=r"the SGLang server is gone \(.*\); look at its log"):
        generate(engine)


# --- the life of a server of our own ------------------------------------------------------------------------------


@pytest.fixture
def fake_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sglang_server, "_HOST", (str(FAKE),))
    monkeypatch.setenv("PYTHONPATH", str(FAKE.parent.parent.parent))
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: name)


def test_a_second_death_is_an_error(fake_host: None, tiny_actor: Any) -> None:
    engine = SGLangEngine()
    engine.attach(tiny_actor, Letters())
    engine.publish()
    with (
        pytest.warns(UserWarning, match=r"SGLang died during generation \(exit status 7"),
        pytest.raises(
            RuntimeError, match=r"died again during generation \(exit status 7\); the end of its log"
        ) as caught,
    ):
        generate(engine)
    log = Path(str(caught.value).split("its log ")[1].split(":\n")[0])
    assert "the last words of a server" in str(caught.value)
    assert "the last words of a server" in log.read_text()
    engine.close()


def test_a_server_that_does_not_start(
    fake_host: None, tiny_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_server, "_HOST", ("-c", "raise SystemExit('no such device')"))
    engine = SGLangEngine()
    engine.attach(tiny_actor, Letters())
    with pytest.raises(RuntimeError, match=r"SGLang did not start \(exit status 1\);(.|\n)*no such device"):
        engine.publish()
    monkeypatch.setattr(sglang_server, "_HOST", ("-c", "import time; time.sleep(600)"))
    engine = SGLangEngine(startup_timeout_seconds=1)
    engine.attach(tiny_actor, Letters())
    assert engine._server is not None
    sleeping = psutil.Process(engine._server.process.pid)
    with pytest.raises(RuntimeError, match=r"did not start within 1 s; raise .*startup_timeout_seconds"):
        engine.publish()
    assert_gone([sleeping])


OWNER = """
import json, os, signal, sys
from relax_lightning.rollout import sglang_server
sglang_server._HOST = (sys.argv[1],)
server = sglang_server.SGLangServer({}, None, defaults={}, chosen={}, environment={}, on_gpu=False, seeded=True,
                                    timeout_seconds=5, startup_timeout_seconds=60)
server.wait_until_ready()
print(json.dumps([server.process.pid, str(server.log.parent)]), flush=True)
exec(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("sys.exit(3)", 3), ("raise ValueError", 1), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)
def test_no_process_outlives_its_owner(end: str, status: int, tmp_path: Path) -> None:
    owner = subprocess.run(
        [sys.executable, "-c", OWNER, str(FAKE), end],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(FAKE.parent.parent.parent)},
        check=False,
    )
    assert owner.returncode == status, owner.stderr
    pid, folder = json.loads(owner.stdout)
    if psutil.pid_exists(pid):
        assert_gone([psutil.Process(pid)])
    assert Path(folder).exists() == (status < 0)


# --- arguments ----------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package sglang, .*; install relax-lightning\[sglang\]"):
        SGLangEngine()
    assert "sglang" not in sys.modules
