from __future__ import annotations

import importlib.util
import re
import time
from pathlib import Path

import pytest

from relax_lightning.rewards.answers.reading import read_answer
from relax_lightning.rewards.dapo_math import dapo_math
from relax_lightning.rewards.math_answer import final_answer, find_answer, same_answer

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/rewards.md"


def corpus():
    spec = importlib.util.spec_from_file_location("answers", Path(__file__).with_name("answers.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EQUAL, module.OTHER


EQUAL, OTHER = corpus()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so it is 34", None),
        ("Answer: 12\nNo.\nAnswer: 34", "34"),
        ("answer : $34$.\n", "$34$."),
        ("Answer:\n34", "34"),
        ("first \\boxed{1}, then \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("Answer: it is \\boxed{5}", "5"),
        ("\\boxed{5} is wrong. Answer: 6", " 6".strip()),
        ("\\boxed{1} and \\boxed{2", "1"),
        ("\\boxed{", None),
        ("", None),
        # marks around the word
        ("**Answer**: 5", "5"),
        ("**Answer:** 5", "5"),
        ("**Final Answer**: 5", "5"),
        ("### Final answer:\n\n5\n", "5"),
        ("__Answer__ : 5", "5"),
        ("\\textbf{Answer:} 5", "5"),
        ("ANSWER\uff1a5", "5"),
        ("Answer: 5 Answer: 6", "6"),
        ("myanswer: 5", None),
        # what is empty says nothing
        ("Answer: 5\nAnswer:", "5"),
        ("Answer: 5\nAnswer:\nAnswer: \n", "5"),
        ("\\boxed{5}, as in \\boxed{}", "5"),
        ("\\boxed{ }", None),
        # braces
        ("\\fbox{5}", "5"),
        ("\\framebox{5}", "5"),
        ("\\boxed {5}", "5"),
        ("\\boxed{\\boxed{5}}", "\\boxed{5}"),
        ("\\boxed{3 + \\boxed{5}", "5"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{(1, 2\\}}", "(1, 2\\}"),
        ("} { \\boxed{5} }", "5"),
        ("\\boxed{Answer: 5}", "5"),
        ("\\boxed{5", None),
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


@pytest.mark.parametrize(
    ("response", "label", "score"),
    [
        (r"\boxed{2\frac{1}{3}}", "7", -1),
        (r"\boxed{2\frac{1}{3}}", "7/3", 1),
        (r"\boxed{1 \frac{1}{2}}", "11/2", -1),
        (r"\boxed{\frac{1}{2x}}", r"\frac{1}{2}x", -1),
        (r"\boxed{\frac{1}{ab}}", r"\frac{1}{a}b", -1),
        (r"\boxed{x <= 5}", "x >= 5", -1),
        (r"\boxed{x != 5}", "5", -1),
        (r"\boxed{x=3, y=5}", "5", -1),
        (r"\boxed{\sqrt2}", r"\sqrt{2}", 1),
        (r"\boxed{\frac1{2}}", "1/2", 1),
        (r"\boxed{\cfrac{1}{2}}", "1/2", 1),
        (r"\boxed{\frac{1}{-2}}", "-1/2", 1),
        (r"\boxed{x^{2}}", "x^2", 1),
        (r"\boxed{(A)}", "A", 1),
        (r"\fbox{5}", "5", 1),
        ("**Answer**: 5", "5", 1),
        (r"\boxed{0.00001}", 1e-05, 1),
        (r"\boxed{5}", {"ground_truth": "5", "style": "rule"}, 1),
    ],
)
def test_scores(response: str, label: object, score: int) -> None:
    assert dapo_math("", response, label, {}) == score


@pytest.mark.parametrize(
    ("label", "answers"), [(row[0], row[1:]) for row in EQUAL], ids=[r[0] for r in EQUAL]
)
def test_answers_that_are_equal(label: str, answers: list[str]) -> None:
    wrong = [a for a in answers if not (same_answer(a, label) and same_answer(label, a))]
    assert wrong == []
    votes = {final_answer(f"Answer: {answer}") for answer in (label, *answers)}
    assert None not in votes


def test_answers_that_differ() -> None:
    assert len(OTHER) + sum(map(len, EQUAL)) > 500
    assert [pair for pair in OTHER if same_answer(*pair) or same_answer(*pair[::-1])] == []


def test_the_table_of_the_documentation() -> None:
    rows = re.findall(r"^\| ([^|`]+) \| (`.*) \| (`.*) \| (yes|no) \|$", DOCUMENT.read_text(), re.M)
    assert len(rows) > 50
    wrong = []
    for _, answers, labels, equal in rows:
        for answer in re.findall(r"`(.+?)`", answers):
            for label in re.findall(r"`(.+?)`", labels):
                if same_answer(answer, label) != (equal == "yes"):
                    wrong.append((answer, label, equal))
    assert wrong == []


def test_votes_for_equal_answers_are_counted_together() -> None:
    responses = ["Answer: 1/2", "\\boxed{0.5}", "Answer: x = \\frac12", "Answer: $\\frac{2}{4}$ cm"]
    assert {final_answer(response) for response in responses} == {"1/2"}
    assert final_answer("Answer: 2/3") != "1/2"
    assert final_answer("nothing") is None and final_answer("\\boxed{$$}") is None


BOX = "\\boxed{"
HOSTILE = {
    "open boxes": BOX * 8000,
    "boxes in boxes": BOX * 8000 + "5" + "}" * 8000,
    "units": "Answer: " + "days" * 4000,
    "units with spaces": "Answer: 5 " + "days " * 1900,
    "open brackets": BOX + "(" * 9000 + "}",
    "deep brackets": BOX + "(" * 4900 + "1" + ")" * 4900 + "}",
    "fractions": BOX + "\\frac" * 10_000 + "}",
    "fewer fractions": BOX + "\\frac" * 900 + "}",
    "deep fractions": BOX + "\\frac{1}{" * 90 + "2" + "}" * 91,
    "roots": BOX + "\\sqrt" * 900 + "}",
    "a tower": BOX + "10**10**10}",
    "a tower in braces": BOX + "10^{10^{10^{10}}}}",
    "a large exponent": BOX + "2^{999999999}}",
    "a large exponent below": BOX + "2^{-999999999}}",
    "a large fraction as exponent": BOX + "2^{999999999/7}}",
    "exponents of exponents": BOX + "(" * 30 + "x" + "^{999999})" * 30 + "}",
    "a long number": BOX + "7" * 9900 + "}",
    "a long decimal": BOX + "0." + "3" * 9900 + "}",
    "a long product": BOX + ("9" * 900 + "*") * 10 + "1}",
    "a large power of ten": BOX + "1e99999999}",
    "factorials": BOX + "((((999999999!)!)!)!)!}",
    "powers of sums": BOX + ",".join(["(a+b)^{60}"] * 80) + "}",
    "products of sums": BOX + "(a+b+c+d+e+f)" * 70 + "}",
    "continued fraction": BOX + "1+\\frac{1}{x+" * 35 + "1" + "}" * 36,
    "roots in roots": BOX + "(\\sqrt{" * 15 + "1+x" + "}+1)^2" * 15 + "}",
    "many roots": BOX + "+".join(f"\\sqrt{{{n}}}" for n in range(1000, 1190)) + "}",
    "plus or minus": BOX + "\\pm" * 400 + "1}",
    "a long list": BOX + ",".join(map(str, range(490))) + "}",
    "an unordered list": BOX + ",".join(f"{n}/7" for n in range(240)) + "}",
    "markers": "Answer:" * 8000,
    "markers on lines": "Answer:\n" * 8000,
    "stars": "answer" + "*" * 50_000,
    "spaces": "Answer: " + " " * 90_000 + "5",
    "signs": BOX + "-" * 900 + "1}",
    "bars": BOX + "|" * 900 + "}",
    "texts": BOX + "\\text{" * 1500 + "}" * 1501,
    "thousands": BOX + "1,234," * 1600 + "5}",
    "a number that Python does not write": BOX + "1e2000*1e2000*1e900" + "}",
    "long exponents": BOX + "(x^{" + "9" * 3900 + "})^{" + "9" * 3900 + "}}",
    "a root of index 0": BOX + "\\sqrt[0]{2}" + "}",
    "a digit of an exponent": BOX + "\\frac1e5" + "}",
    "odd characters": "Answer: \x00\ud800",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_take_milliseconds(text: str) -> None:
    start = time.process_time()
    for label in ("7/3", "x+1", find_answer(text) or "0"):
        assert dapo_math("", text, "5", {}) == (1.0 if text == HOSTILE["spaces"] else -1.0)
        same_answer(find_answer(text) or "", label)
    final_answer(text)
    assert time.process_time() - start < 1.0
    read_answer.cache_clear()
