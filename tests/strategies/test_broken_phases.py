"""An error anywhere in an iteration: what had left comes back bit for bit, and the next phase runs as ever."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from relax_lightning.config import AlgorithmConfig, OptimizerConfig, ParallelConfig, SamplingConfig
from relax_lightning.config.architecture import read_architecture
from relax_lightning.megatron.optimizer import inner_optimizers
from relax_lightning.megatron.reference import Reference
from relax_lightning.megatron.role import Actor, Critic
from relax_lightning.ppo.updates import StepLoss
from relax_lightning.rollout.embedded import MegatronEngine
from relax_lightning.rollout.sglang.engine import SGLangEngine
from relax_lightning.run import host_memory
from relax_lightning.run.host_memory import HostArena
from relax_lightning.strategies.colocate import ColocateStrategy
from relax_lightning.strategies.offload import EngineResident, TensorGroup
from relax_lightning.strategies.pool import GpuPool
from relax_lightning.strategies.residency import PHASES
from tests.megatron.test_role import make_experience
from tests.rollout.fake_sglang import IDLE, FakeServer
from tests.rollout.letters import Letters

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="breaks off at the CPU's copies")


class Cut(BaseException):
    """As Ctrl-C: no `except Exception` sees it."""


class Moves(TorchDispatchMode):
    """Counts copies and changes of a storage's size, and breaks off just before the n-th."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._left = 0
        resize = torch.UntypedStorage.resize_

        def counted(storage: torch.UntypedStorage, size: int) -> Any:
            self._count()
            return resize(storage, size)

        monkeypatch.setattr(torch.UntypedStorage, "resize_", counted)

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Cut

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self._count()
        return func(*args, **(kwargs or {}))

    def cut_at(self, number: int, action: Callable[[], Any]) -> bool:
        """Whether it broke off before `action` was through."""
        self._left = number
        try:
            with self:
                action()
        except Cut:
            return True
        finally:
            self._left = 0
        return False


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Moves:
    return Moves(monkeypatch)


def test_tensors_whose_move_breaks_off_anywhere(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    pinned = HostArena._pinned
    monkeypatch.setattr(host_memory, "LARGEST", 64)
    monkeypatch.setattr(host_memory, "SMALLEST", 64)
    monkeypatch.setattr(HostArena, "_pinned", lambda arena, size: pieces.append(size) or pinned(arena, size))
    tensors = [torch.arange(n, dtype=torch.float32) for n in (3, 40, 1, 16)]
    before = [tensor.clone() for tensor in tensors]
    group = TensorGroup(lambda: tensors)

    def assert_back() -> None:
        group.onload()
        assert not group.is_away and all(torch.equal(*p) for p in zip(tensors, before, strict=True))

    for number in itertools.count(1):
        was_cut = moves.cut_at(number, group.offload)
        assert_back()
        group.offload()
        assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
        if moves.cut_at(number, group.onload):
            assert group.is_away
            assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
        assert_back()
        if not was_cut:
            break
    assert number > 10
    # 60 numbers of 4 bytes in pieces of 64 bytes, taken once.
    assert len(pieces) == 4


def test_an_engine_that_refuses_to_give_its_memory(tiny_actor: Any) -> None:
    refusals = [(500, {"detail": "busy"}), (500, {"detail": "busy"})]

    def once(body: Any) -> Any:
        return refusals.pop() if refusals else {}

    paths = {"/release_memory_occupation": once, "/resume_memory_occupation": {}}
    with FakeServer({**IDLE, **paths}) as server:
        engine = SGLangEngine(url=server.url)
        engine.attach(tiny_actor, Letters())
        resident = EngineResident(engine)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="refused /release_memory_occupation"):
                resident.offload("engine_weights")
        # It has not left, so nothing has to come back.
        resident.onload("engine_weights")
        engine.publish()
        resident.offload("engine_weights")
        resident.onload("engine_weights")
        engine.publish()
    asked = [path for path, _ in server.requests if "occupation" in path]
    assert asked == ["/release_memory_occupation"] * 3 + ["/resume_memory_occupation"]


class Run:
    """Actor, critic and embedded engine under a strategy that moves all that a phase does not use."""

    def __init__(self, directory: Path, root: Path) -> None:
        self.experience = make_experience()
        self.strategy = ColocateStrategy(CPU, save_root=root, pool=GpuPool("always"))
        self.roles: dict[str, Any] = {}
        for kind, fraction in ((Actor, 0.0), (Critic, 0.5)):
            name = kind.__name__.lower()
            head = {"head_init": "normal"} if kind is Critic else {}
            self.roles[name] = kind(
                name,
                read_architecture(directory),
                ParallelConfig(),
                OptimizerConfig(lr=1e-3, cpu_offload_fraction=fraction),
                num_steps=10,
                dtype=torch.float32,
                device=CPU,
                weights=str(directory),
                **head,
            )
            self.strategy.register(name, self.roles[name])
        self.reference = Reference(self.roles["actor"])
        self.engine = MegatronEngine()
        self.engine.attach(self.roles["actor"], Letters())

    def work(self, phase: str, *, breaks: bool) -> Any:
        """What a phase is for; breaks in the middle of its first step, or after all of it where it has none."""
        if phase in self.roles:
            return self._learn(self.roles[phase], breaks)
        if phase == "reference":
            # A sample that does not exist is found out while the reference's weights are in the actor's place.
            rows = [[0, 1], [99]] if breaks else [[0, 1], [2]]
            return self.reference.log_probs(self.experience.rollouts, rows).tolist()
        done: Any = self.engine.publish() if phase == "publish" else self._generate()
        if breaks:
            raise RuntimeError("broken on purpose")
        return done

    def _generate(self) -> Any:
        return self.engine.generate([[1, 2], [3]], [0, 1], SamplingConfig(max_new_tokens=5), seed=7)

    def _learn(self, role: Any, breaks: bool) -> Any:
        rollouts = self.experience.rollouts
        rows = [row for row in range(16) if rollouts.response_lengths[row] > 0]
        losses = StepLoss(self.experience, rows, AlgorithmConfig(), CPU)
        is_critic = isinstance(role, Critic)
        seen: list[Any] = []

        def loss(outputs: Any, chosen: tuple[int, ...]) -> Any:
            seen.append(chosen)
            if breaks and len(seen) == 2:
                raise RuntimeError("broken on purpose")
            return losses.critic(outputs, chosen) if is_critic else losses.actor(outputs, chosen)

        head = role.head() if is_critic else role.head(rollouts.temperature)
        return role.update([role.pack(rollouts, rows[n::3]) for n in range(3)], head, loss, 1.0)

    def iterate(self, broken: str | None = None) -> list[Any]:
        """One iteration, or one that breaks off in a phase; gives what came of each phase."""
        with self.strategy.iteration():
            found = []
            for phase in PHASES if broken is None else [broken]:
                with self.strategy.phase(phase):
                    found.append(self.work(phase, breaks=broken is not None))
        return found

    def state(self) -> list[Tensor]:
        """Weights, moments and steps of both roles, each looked at where it is on the device."""
        found: list[Tensor] = []
        for name, role in self.roles.items():
            self.strategy.make_room(name)
            found += [p.detach().clone() for p in role.model.parameters()]
            for inner in inner_optimizers(role.optimizer):
                found += [value.clone() for values in inner.state.values() for value in values.values()]
        return found


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_a_broken_phase_leaves_nothing_behind(
    process_group: None, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    broken, whole = (Run(tiny_model("llama"), tmp_path / name) for name in ("broken", "whole"))
    start = whole.state()
    whole.strategy.save_checkpoint({}, tmp_path / "whole" / "iter_0000001")
    for phase in (*PHASES, *reversed(PHASES)):
        with pytest.raises((RuntimeError, IndexError), match=r"broken on purpose|index 99 is out of bounds"):
            broken.iterate(phase)
        assert broken.strategy.is_dirty
        with pytest.raises(RuntimeError, match="refused to save in the middle of an iteration, or after one"):
            broken.strategy.save_checkpoint({}, tmp_path / "broken" / "iter_0000001")
        assert equal(broken.state(), start), phase
    assert not (tmp_path / "broken").exists()
    # The next iteration is the one of a run that never broke.
    ours, theirs = broken.iterate(), whole.iterate()
    assert ours[:4] == theirs[:4] and ours[2].applied and ours[3].applied
    assert equal(broken.state(), whole.state()) and not equal(broken.state(), start)
    # It cannot know that the one before did no harm, until a checkpoint is loaded.
    assert broken.strategy.is_dirty and not whole.strategy.is_dirty
    strategy = broken.strategy
    strategy._critic_load_root = tmp_path / "whole"
    strategy.load_model_state_dict(strategy.load_checkpoint(tmp_path / "whole" / "iter_0000001"))
    assert equal(broken.state(), start)
    strategy.save_checkpoint({}, tmp_path / "broken" / "iter_0000002")
    broken.engine.close()


def test_a_switch_that_breaks_off_anywhere(
    moves: Moves, process_group: None, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    run = Run(tiny_model("llama"), tmp_path)
    run.iterate()
    before = run.state()
    pool = run.strategy._pool
    cut = set()
    for number in itertools.count(1, 29):
        # Each switch is cut at another place, and the next one follows as if it had not been.
        now = {phase for phase in PHASES if moves.cut_at(number, partial(pool.enter, phase))}
        assert equal(run.state(), before), number
        if not now:
            break
        cut |= now
    assert number > 100 and cut >= {"critic", "actor"}
    run.iterate()
