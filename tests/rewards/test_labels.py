from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from relax_lightning.rewards.registry import load_label, load_reward

MAPPING = {"ground_truth": "34", "style": "rule"}


@pytest.mark.parametrize(
    ("reward", "label", "taken"),
    [
        ("dapo_math", "34", "34"),
        ("dapo_math", 34, 34),
        ("dapo_math", 1e-05, 1e-05),
        ("dapo_math", Decimal("2.50"), Decimal("2.50")),
        ("dapo_math", np.int64(34), 34),
        ("dapo_math", np.float64(0.5), 0.5),
        ("dapo_math", np.array(34), 34),
        ("dapo_math", np.str_("34"), "34"),
        ("dapo_math", MAPPING, "34"),
        ("dapo_math", {"ground_truth": np.int64(3)}, 3),
        ("dapo_math", "no solution", "no solution"),
        (
            "dapo_math",
            r"\begin{pmatrix}1\\" + "\n" + r"2\end{pmatrix}",
            r"\begin{pmatrix}1\\" + "\n" + r"2\end{pmatrix}",
        ),
        ("dapo_math", "答案", "答案"),
        ("exact_match", "34", "34"),
        ("exact_match", "", ""),
        ("exact_match", 34, 34),
        ("exact_match", MAPPING, "34"),
        ("reasoning_gym", "34", "34"),
        ("reasoning_gym", 34, "34"),
        ("reasoning_gym", None, None),
        (None, float("nan"), None),
        (None, ["a", 1], ["a", 1]),
        (None, MAPPING, MAPPING),
    ],
)
def test_labels_that_are_taken(reward: str | None, label: Any, taken: Any) -> None:
    found = load_label(reward)(label)
    assert found is label if reward is None else (found == taken and type(found) is type(taken))


@pytest.mark.parametrize("reward", ["dapo_math", "exact_match", "reasoning_gym"])
@pytest.mark.parametrize(
    ("label", "got"),
    [
        (None, "null"),
        (float("nan"), "float nan"),
        (float("inf"), "float inf"),
        (np.float32("nan"), "float nan"),
        (Decimal("NaN"), "Decimal"),
        (True, "bool True"),
        (np.bool_(False), "bool False"),
        (["34"], r"list \['34'\]"),
        (np.array([3, 4]), "ndarray"),
        (b"34", "bytes"),
        (datetime.date(2026, 1, 1), "date"),
        (3 + 4j, "complex"),
        ({"answer": "34"}, "one with 'answer'"),
        ({}, "one with no key"),
        ({"ground_truth": None}, "null"),
        ({"ground_truth": ["34"]}, "list"),
    ],
)
def test_labels_that_are_refused(reward: str, label: Any, got: str) -> None:
    if reward == "reasoning_gym" and got == "null":
        return
    with pytest.raises(
        ValueError, match=rf"does not suit the reward {reward}: wanted .*{got}.*label_key"
    ) as caught:
        load_label(reward)(label)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "label",
    [
        "",
        "  ",
        "$$",
        r"\boxed{}",
        "She has 3.\nSo it is 72.\n#### 72",
        r"It follows that \boxed{5} is right",
        "Answer: well, 5?",
    ],
)
def test_a_label_of_dapo_math_is_the_answer_alone(label: str) -> None:
    with pytest.raises(ValueError, match=r"wanted (an answer|the final answer alone)"):
        load_label("dapo_math")(label)


def test_numbers_that_are_too_long_to_print() -> None:
    for reward in ("dapo_math", "exact_match"):
        with pytest.raises(ValueError, match="got a very long number"):
            load_label(reward)(10**5000)


def test_numbers_with_decimals_have_several_spellings() -> None:
    for reward in ("exact_match", "reasoning_gym"):
        with pytest.raises(ValueError, match=r"wanted text or a whole number, got float 1e-05"):
            load_label(reward)(1e-05)


def test_a_reward_that_is_called_by_itself_refuses_too() -> None:
    with pytest.raises(
        ValueError, match="exact_match needs a label: wanted text or a whole number, got null"
    ):
        load_reward("exact_match", None, {})("", "None", None, {})
    with pytest.raises(ValueError, match=r"dapo_math needs a label: .* got float nan"):
        load_reward("dapo_math", None, {})("", r"\boxed{nan}", float("nan"), {})
    assert load_reward("dapo_math", None, {})("", r"\boxed{0.00001}", 1e-05, {}) == 1.0
    assert load_reward("dapo_math", None, {})("", r"\boxed{34}", MAPPING, {}) == 1.0
