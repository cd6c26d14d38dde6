"""What SGLangEngine does beyond the contract of every engine, on a real server."""

from __future__ import annotations

import contextlib
import pickle
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
import torch

from relax_lightning.config import SamplingConfig
from relax_lightning.distributed.peers import Peers
from relax_lightning.rollout.engine import Generation
from relax_lightning.rollout.sglang.engine import SGLangEngine
from relax_lightning.rollout.weight_sync import ByValue, SharedMemory, publish_weights
from tests.rollout.letters import Letters
from tests.rollout.processes import assert_gone
from tests.rollout.test_engine_contract import assert_same_answers

PROMPTS = [[1, 2, 3], [40, 41], [7]] * 2
SAMPLING = SamplingConfig(max_new_tokens=12)


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

    @property
    def peers(self) -> Peers:
        return self._actor.peers

    def hf_config(self) -> dict[str, Any]:
        return self._actor.hf_config()

    def hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._actor.hf_weights():
            if name != self._name:
                yield name, tensor
            elif not self._missing:
                yield name, tensor if self._asked else tensor + 1e-7 * tensor.abs().max()
        self._asked = True


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
    settings = {"transport": transport, "num_payloads": 1, "bucket_bytes": 20_000}
    publish_weights(tiny_actor.hf_weights(), client, engine.weight_version, **settings)
    assert client.weight_checksums() == sums
    assert_same_answers(engine, before, generate(engine))

    # A publication that breaks off leaves no version that a generation may have.
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        for number, named in enumerate(tiny_actor.hf_weights()):
            yield named
            assert number < 10, "the policy broke off"

    with pytest.raises(AssertionError, match="broke off"):
        publish_weights(broken(), client, engine.weight_version, **settings)
    with pytest.raises(RuntimeError, match=r"generated with weights (\d+)-incomplete, published are \1"):
        generate(engine)


def test_every_rank_hands_the_engine_a_copy_of_its_own(tiny_actor: Any) -> None:
    """Two ranks of one engine, each a thread."""
    meeting, given = threading.Barrier(2, timeout=60), [[], []]
    received: list[dict[str, torch.Tensor]] = [{}, {}]
    storages: list[set[Any]] = [set(), set()]
    versions = []

    class Receiver:
        def update_session(self) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        def update_weights(self, payloads: list[bytes], version: str, *, is_last: bool) -> None:
            versions.append(version)
            assert len(payloads) == 2
            for weights, handles, payload in zip(received, storages, payloads, strict=True):
                bucket = pickle.loads(payload)
                flat = bucket["flattened_tensor"]
                handles.add(flat.untyped_storage()._share_filename_cpu_()[1])
                for place in bucket["metadata"]:
                    part = flat[place.start_idx : place.end_idx].clone()
                    weights[place.name] = part.view(place.dtype).view(place.shape)

    def publish(rank: int) -> Any:
        def exchange(payloads: Any) -> list[bytes]:
            given[rank] = payloads()
            meeting.wait()
            found = [payload for of_rank in given for payload in of_rank]
            meeting.wait()
            return found

        return publish_weights(
            wanted.items(),
            Receiver() if rank == 0 else None,
            4,
            transport=SharedMemory(),
            num_payloads=1,
            bucket_bytes=20_000,
            exchange=exchange,
        )

    wanted = {name: tensor.detach().clone() for name, tensor in tiny_actor.hf_weights()}
    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(publish, range(2))
    assert first == second
    assert len(versions) > 3 and set(versions[:-1]) == {"4-incomplete"} and versions[-1] == "4"
    assert not storages[0] & storages[1]
    for weights in received:
        assert weights.keys() == wanted.keys()
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in weights.items())


def test_another_publisher_is_noticed(engine: SGLangEngine, tiny_actor: Any) -> None:
    other = beside(engine, tiny_actor)
    assert other.publish() == 1
    answers = generate(other)
    with pytest.raises(RuntimeError, match=r"generated with weights 1, published are .*another run"):
        generate(engine)
    engine.publish()
    assert_same_answers(engine, answers, generate(engine))
    with pytest.raises(RuntimeError, match="published are 1"):
        generate(other)
    other.close()
    assert_same_answers(engine, answers, generate(engine))


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
    assert_same_answers(engine, before, generate(engine))
    engine.offload(["weights"])
    engine.onload(["weights"])
    with pytest.raises(AssertionError, match="publish before a generation"):
        generate(engine)


def test_stop_strings_and_ignored_ends(engine: SGLangEngine) -> None:
    free = generate(engine, SamplingConfig(max_new_tokens=12, ignore_eos=True))
    token = free[0].token_ids[5]
    cut = generate(engine, SamplingConfig(max_new_tokens=12, ignore_eos=True, stop_token_ids=[token]))[0]
    end = free[0].token_ids.index(token) + 1
    wanted = Generation(free[0].token_ids[:end], free[0].log_probs[:end], "stop")
    assert_same_answers(engine, [wanted], [cut])


@pytest.mark.slow
def test_a_killed_scheduler_is_replaced(engine: SGLangEngine) -> None:
    before, version = generate(engine), engine.weight_version
    assert engine._server is not None
    family = psutil.Process(engine._server.process.pid)
    children = family.children(recursive=True)
    listening = [c.laddr.ip for p in (family, *children) for c in p.net_connections() if c.status == "LISTEN"]
    assert len(listening) > 1 and set(listening) <= {"127.0.0.1", "::1"}
    scheduler = next(p for p in children if "scheduler" in " ".join(p.cmdline()))
    engine.offload(["cuda_graph"])
    engine.onload(["cuda_graph"])
    scheduler.send_signal(signal.SIGKILL)
    with pytest.warns(
        UserWarning, match=r"SGLang died during generation \(killed by SIGKILL; its log is .*\); it is"
    ):
        assert_same_answers(engine, before, generate(engine))
    assert engine.weight_version == version
    assert_gone([family, *children])
    engine.verify()
