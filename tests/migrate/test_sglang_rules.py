"""Every argument of the installed SGLang: it lands where `fit` takes it, as what it is there."""

import pytest

from relax_lightning.config.engines import SGLANG_DECIDED, engine_faults, server_argument_names
from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.rules import Flags, LeftOut, Setting
from relax_lightning.migrate.sglang_rules import sglang

ENGINE = "data.rollout.engine.init_args"


def landed(name, *values):
    """Where a flag of SGLang's lands, and as what; None where it is left out."""
    flag = Flag(f"--sglang-{name.replace('_', '-')}", tuple((value,) for value in values))
    (outcome,) = sglang(flag, Flags([flag]))
    if isinstance(outcome, LeftOut):
        return None
    assert isinstance(outcome, Setting)
    return outcome.key.removeprefix(f"{ENGINE}."), outcome.value


def arguments(key, value):
    return {"server_args": {key.removeprefix("server_args."): value}} if "." in key else {key: value}


def test_every_argument_is_one_that_fit_takes():
    names = server_argument_names()
    if names is None:
        pytest.skip("SGLang is not installed")
    assert len(names) > 400
    for name in names - {*SGLANG_DECIDED}:
        key, _ = landed(name, '{"a": 1}')
        assert key == f"server_args.{name}"
    wrong = {}
    for name in names - {"tp_size", "max_running_requests"}:
        place = landed(name, '["1"]' if name in ("sidecar_args", "forward_hooks") else "0.5")
        if place is not None and (faults := engine_faults("SGLangEngine", arguments(*place))):
            wrong[name] = faults
    assert wrong == {}


@pytest.mark.parametrize(
    ("name", "values", "place"),
    [
        ("cuda_graph_bs", ("1", "2"), ("server_args.cuda_graph_bs_decode", [1, 2])),
        ("cuda_graph_bs", ("8",), ("server_args.cuda_graph_bs_decode", [8])),
        ("cuda_graph_max_bs", ("256",), ("server_args.cuda_graph_max_bs_decode", 256)),
        ("attention_backend", ("fa3",), ("server_args.attention_backend", "fa3")),
        ("enable_metrics", (), ("server_args.enable_metrics", True)),
        ("disable_radix_cache", ("false",), ("server_args.disable_radix_cache", False)),
        ("schedule_conservativeness", ("0.5",), ("server_args.schedule_conservativeness", 0.5)),
        ("log_requests_target", ("stdout",), ("server_args.log_requests_target", ["stdout"])),
        ("mm_process_config", ('{"a": 1}',), ("server_args.mm_process_config", {"a": 1})),
        ("disable_piecewise_cuda_graph", (), ("server_args.cuda_graph_backend_prefill", "disabled")),
        ("ep_size", ("2",), ("server_args.ep_size", 2)),
        ("expert_parallel_size", ("2",), ("server_args.ep_size", 2)),
        ("tp_size", ("2",), ("tensor_parallel_size", 2)),
        ("tensor_parallel_size", ("2",), ("tensor_parallel_size", 2)),
        ("mem_fraction_static", ("0.6",), ("mem_fraction_static", 0.6)),
        ("max_running_requests", ("64",), ("max_running_requests", 64)),
        ("context_length", ("4096",), None),
        ("model_path", ("/m",), None),
        ("port", ("30000",), None),
        ("api_key", ("secret",), None),
    ],
)
def test_where_an_argument_lands(name, values, place):
    assert landed(name, *values) == place


@pytest.mark.parametrize(
    ("init_args", "words"),
    [
        ({"server_args": {"tp_size": 2}}, "wanted no tp_size, got 2; use init_args.tensor_parallel_size"),
        ({"server_args": {"port": 1}}, "wanted no port, got 1; leave it out, the engine sets it"),
        ({"url": "http://x", "mem_fraction_static": 0.5}, "wanted no arguments of a server beside it"),
        ({"url": "http://x", "tensor_parallel_size": 2}, "got tensor_parallel_size; give them to the server"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_with_the_configuration(init_args, words):
    (found,) = engine_faults("SGLangEngine", init_args)
    assert words in str(found)


def test_an_unknown_argument_is_named_with_the_nearest():
    if server_argument_names() is None:
        pytest.skip("SGLang is not installed")
    (found,) = engine_faults("SGLangEngine", {"server_args": {"chunk_prefill_size": 1}})
    assert (
        "wanted an argument of SGLang, got 'chunk_prefill_size'; did you mean `chunked_prefill_size`?"
        in str(found)
    )
