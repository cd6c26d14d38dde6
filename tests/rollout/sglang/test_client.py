"""What SGLangEngine makes of a server's answers: those of other versions, and those that mean no."""

from __future__ import annotations

from typing import Any

import pytest

from relax_lightning.config import SamplingConfig
from relax_lightning.rollout.sglang.engine import SGLangEngine
from tests.rollout.fake_sglang import IDLE, INFO, SUCCESS, FakeServer
from tests.rollout.letters import Letters

SAMPLING = SamplingConfig(max_new_tokens=12)


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


def test_every_tensor_rank_gets_a_payload_of_its_own(tiny_actor: Any) -> None:
    with FakeServer({**IDLE, "/server_info": {**INFO, "tp_size": 3}}) as server:
        engine = SGLangEngine(url=server.url, bucket_mib=1)
        engine.attach(tiny_actor, Letters())
        engine.publish()
    _, body = server.requests[-1]
    assert len(body["serialized_named_tensors"]) == 3


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
        engine.generate([[1, 2]], [0], SAMPLING, seed=0)
