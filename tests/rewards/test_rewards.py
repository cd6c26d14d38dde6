"""The registered rewards, called as the workers call them."""

from __future__ import annotations

import pytest

from relax_lightning.rewards.registry import load_reward


def test_dapo_math() -> None:
    reward = load_reward("dapo_math", None, {})
    assert reward("What is 2 * 17?", "Let us see.\nAnswer: $34$", "34", {}) == 1.0
    assert reward("What is 2 * 17?", "\\boxed{34}", 34, {}) == 1.0
    assert reward("What is 2 * 17?", "Answer: 35", "34", {}) == -1.0
    assert reward("What is 2 * 17?", "34", "34", {}) == -1.0
    assert reward("What is 2 * 17?", "", "34", {}) == -1.0
    with pytest.raises(ValueError, match="dapo_math needs a label"):
        reward("What is 2 * 17?", "Answer: 35", None, {})


def test_exact_match() -> None:
    reward = load_reward("exact_match", None, {})
    assert reward("", " 21 \n", "21", {}) == 1.0
    assert reward("", "21", 21, {}) == 1.0
    assert reward("", "21.", "21", {}) == 0.0
    assert reward("", "", "21", {}) == 0.0


def test_reasoning_gym_scores_by_the_task() -> None:
    reward = load_reward("reasoning_gym", None, {})
    # The task by reasoning-gym's own metadata; chain_sum wants the number.
    source = {"source_dataset": "chain_sum", "expression": "4 - 1 - 7"}
    for response in ("-4", "Well.\n<answer> -4 </answer> Done.", "Answer: 3\nAnswer: -4\n", "It is\n-4\n"):
        assert reward("4 - 1 - 7 =", response, "-4", source) == 1.0
    assert reward("4 - 1 - 7 =", "-5", "-4", source) < 0.1
    assert reward("4 - 1 - 7 =", "", "-4", source) < 0.1
    # countdown has many right answers; its scorer needs the numbers and the target of the metadata.
    metadata = {"task": "countdown", "metadata": {"numbers": [6, 61, 94, 4], "target": 309}}
    assert reward("Calculate 309.", "<answer>4*94 - 61 - 6</answer>", "94*4 - 61 - 6", metadata) == 1.0
    assert reward("Calculate 309.", "<answer>94*4</answer>", "94*4 - 61 - 6", metadata) < 0.1
    with pytest.raises(ValueError, match=r"neither `task` nor `source_dataset`, only \['other'\]"):
        reward("", "", "", {"other": 1})
    named = load_reward("reasoning_gym", None, {"task": "chain_sum"})
    assert named("4 - 1 - 7 =", "-4", "-4", {}) == 1.0
