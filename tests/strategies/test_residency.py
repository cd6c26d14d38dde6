"""What leaves the GPU, by budget: nothing, only gradients, optimizer state too; and the two fixed modes."""

from relax_lightning.strategies.residency import Holding, Need, leaving, occupied

HOLDINGS = [
    Holding(role, tag, size)
    for role in ("actor", "critic")
    for tag, size in {"weights": 2, "gradients": 4, "optimizer": 12}.items()
] + [Holding("engine", "engine_weights", 2), Holding("engine", "kv_cache", 10)]


def all_of(owner):
    return frozenset((h.owner, h.tag) for h in HOLDINGS if h.owner == owner)


NEEDS = {
    "rollout": Need(all_of("engine")),
    "critic": Need(all_of("critic"), working=5),
    "actor": Need(all_of("actor"), working=5),
    "publish": Need(frozenset({("actor", "weights"), ("engine", "engine_weights")}), working=1),
}


def names(budget, mode="auto"):
    left = leaving(HOLDINGS, NEEDS, budget=budget, mode=mode)
    return {phase: [f"{h.owner} {h.tag}" for h in holdings] for phase, holdings in left.items()}


def test_nothing_moves_while_everything_fits():
    # Everything is 48, and 5 of activations.
    assert set(map(tuple, names(53).values())) == {()}
    assert names(None) == names(53)


def test_only_gradients_move_when_they_are_enough():
    assert names(49) == {
        "rollout": [],
        "critic": ["actor gradients"],
        "actor": ["critic gradients"],
        "publish": [],
    }
    assert names(45)["rollout"] == ["actor gradients"]
    assert names(45)["critic"] == ["actor optimizer"]


def test_optimizer_state_then_weights_then_the_engine():
    assert names(40)["rollout"] == ["actor gradients", "critic gradients"]
    # One state is enough once the gradients are not: what it makes needless stays.
    assert names(36)["rollout"] == ["actor optimizer"]
    left = leaving(HOLDINGS, NEEDS, budget=23, mode="auto")
    for phase in ("rollout", "critic", "actor"):
        assert occupied(HOLDINGS, NEEDS[phase], left[phase]) <= 23


def test_always_and_never():
    assert set(map(tuple, names(1, "never").values())) == {()}
    always = names(1000, "always")
    assert always["rollout"] == [
        f"{role} {tag}" for tag in ("gradients", "optimizer", "weights") for role in ("actor", "critic")
    ]
    assert "engine kv_cache" in always["critic"]
    assert "actor weights" not in always["publish"]


def test_a_phase_that_cannot_fit_gives_up_all_it_can():
    assert len(names(1)["critic"]) == 5
