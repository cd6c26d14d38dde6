"""The calls that a phase switch makes: only what must, in the order that keeps the peak low."""

from relax_lightning.strategies.pool import GpuPool, Resident
from relax_lightning.strategies.residency import PHASES

ROLE = {"weights": 2, "gradients": 4, "optimizer": 12}
ENGINE = {"engine_weights": 2, "kv_cache": 10}


class Recorder(Resident):
    """Writes down what it is asked for."""

    def __init__(self, owner: str, sizes: dict[str, int], calls: list[str]) -> None:
        self._owner, self._sizes, self._calls = owner, sizes, calls

    def sizes(self) -> dict[str, int]:
        return self._sizes

    def offload(self, tag: str) -> None:
        self._calls.append(f"-{self._owner}.{tag}")

    def onload(self, tag: str, *, stays: bool = False) -> None:
        self._calls.append(f"+{self._owner}.{tag}" + (" for good" if stays else ""))


def pool(mode: str, budget: int | None, *, engine: bool = True) -> tuple[GpuPool, list[str]]:
    calls: list[str] = []
    made = GpuPool(mode, budget, dict.fromkeys(("critic", "actor"), 5))
    for role in ("actor", "critic"):
        made.register(role, Recorder(role, ROLE, calls))
    if engine:
        made.register("engine", Recorder("engine", ENGINE, calls))
    return made, calls


def iteration(made: GpuPool, calls: list[str]) -> dict[str, list[str]]:
    told = {}
    # A run without a reference model has no phase of that name.
    for phase in (phase for phase in PHASES if phase != "reference"):
        calls.clear()
        made.enter(phase)
        told[phase] = list(calls)
    return told


def test_nothing_moves_while_everything_fits() -> None:
    for mode, budget in (("auto", 53), ("auto", None), ("never", 1)):
        made, calls = pool(mode, budget)
        assert not any(iteration(made, calls).values())


def test_gradients_alone_then_optimizer_state() -> None:
    made, calls = pool("auto", 49)
    iteration(made, calls)
    assert iteration(made, calls) == {
        "rollout": [],
        "critic": ["-actor.gradients", "+critic.gradients"],
        "actor": ["-critic.gradients", "+actor.gradients"],
        "publish": [],
    }
    made, calls = pool("auto", 41)
    iteration(made, calls)
    assert iteration(made, calls)["critic"] == ["-actor.optimizer", "+critic.gradients", "+critic.optimizer"]


def test_always_moves_what_the_phase_does_not_use_and_nothing_twice() -> None:
    made, calls = pool("always", None)
    iteration(made, calls)
    told = iteration(made, calls)
    assert told["critic"] == [
        "-engine.engine_weights",
        "-engine.kv_cache",
        "+critic.gradients",
        "+critic.optimizer",
        "+critic.weights",
    ]
    assert told["publish"] == ["-actor.gradients", "-actor.optimizer", "+engine.engine_weights"]
    assert told["rollout"] == ["-actor.weights", "+engine.kv_cache"]


def test_the_embedded_engine_generates_on_the_actors_weights() -> None:
    made, calls = pool("always", None, engine=False)
    iteration(made, calls)
    told = iteration(made, calls)
    assert told["rollout"] == []
    assert told["critic"] == ["-actor.weights", "+critic.gradients", "+critic.optimizer", "+critic.weights"]
    assert told["publish"] == ["-actor.gradients", "-actor.optimizer"]


def test_the_critic_is_built_beside_an_actor_that_leaves_room() -> None:
    gone = ["-actor.gradients", "-actor.optimizer", "-actor.weights"]
    for mode, budget, wanted in (
        ("auto", 36, []),
        ("auto", 35, gone),
        ("auto", None, []),
        ("always", 1000, gone),
        ("never", 1, []),
    ):
        calls: list[str] = []
        made = GpuPool(mode, budget)
        made.register("actor", Recorder("actor", ROLE, calls))
        made.clear(room_for=18)
        assert calls == wanted


def test_an_engine_starts_on_an_empty_gpu_and_what_left_for_it_alone_returns_for_good() -> None:
    made, calls = pool("auto", 49)
    made.clear()
    assert len(calls) == 8
    calls.clear()
    made.enter("critic")
    assert calls == ["+critic.gradients", "+critic.optimizer for good", "+critic.weights for good"]
    calls.clear()
    made.enter("actor")
    assert calls == [
        "-critic.gradients",
        "+actor.gradients",
        "+actor.optimizer for good",
        "+actor.weights for good",
    ]
    calls.clear()
    with made.vacated():
        there = ["actor.gradients", "actor.optimizer", "actor.weights", "critic.optimizer", "critic.weights"]
        assert calls == [f"-{part}" for part in there]
        calls.clear()
    assert [call.removesuffix(" for good") for call in calls] == [f"+{part}" for part in there]
    made, calls = pool("never", 1)
    with made.vacated():
        assert calls == []
