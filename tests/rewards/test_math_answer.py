from __future__ import annotations

import pytest

from relax_lightning.rewards.math_answer import find_answer, normalize_answer, same_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so it is 34", None),
        ("Answer: 12\nNo.\nAnswer: 34", "34"),
        ("answer : $34$.\n", "$34$."),
        ("Answer:\n34", "34"),
        ("first \\boxed{1}, then \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("Answer: it is \\boxed{5}", "5"),
        ("\\boxed{5} is wrong. Answer: 6", "6"),
        ("\\boxed{1} and \\boxed{2", "1"),
        ("\\boxed{", None),
        ("", None),
    ],
)
def test_find_answer(text: str, answer: str | None) -> None:
    assert find_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("34", "34"),
        ("$34$.", "34"),
        ("**34**", "34"),
        ("x = 34", "34"),
        ("1,234,567", "1234567"),
        ("1{,}234", "1234"),
        ("5.00", "5"),
        ("+7", "7"),
        (".5", "\\frac{1}{2}"),
        ("\\dfrac{1}{2}", "1/2"),
        ("\\frac12", "0.5"),
        ("-\\frac{1}{2}", "-0.5"),
        ("\\frac{\\frac{1}{2}}{3}", "(1/2)/3"),
        ("\\frac{a+1}{b}", "(a+1)/b"),
        ("10\\text{ cm}^2", "10"),
        ("10 square inches", "10"),
        ("90^\\circ", "90"),
        ("$15\\%$", "15"),
        ("\\$15", "15"),
        ("\\text{Monday}", "Monday"),
        ("\\left( 1,\\, 2 \\right)", "(1,2)"),
        ("\N{MINUS SIGN}3", "-3"),
    ],
)
def test_same_answers(answer: str, expected: str) -> None:
    assert same_answer(answer, expected) and same_answer(expected, answer)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("34", "35"),
        ("3", "34"),
        ("-3", "3"),
        ("1/3", "0.33"),
        ("1/0", "1"),
        ("1,2", "12"),
        ("", ""),
        ("$$", ""),
        ("1e99999999", "1"),
    ],
)
def test_other_answers(answer: str, expected: str) -> None:
    assert not same_answer(answer, expected)


def test_normalizing_twice_changes_nothing_more() -> None:
    for text in (
        "$\\boxed{\\text{ 1,000 km}}$",
        "\\frac{\\sqrt{2}}{2}",
        "{{{",
        "\\text{\\text{\\text{a}}}",
        "5 m m m",
    ):
        assert normalize_answer(normalize_answer(text)) == normalize_answer(text)
