r"""Answers made at random, judged by sympy: none is scored equal to another number, and none costs much time.

`settings.py` says how many.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from relax_lightning.rewards.dapo_math import dapo_math
from relax_lightning.rewards.math_answer import final_answer, find_answer, same_answer
from tests.fuzz.settings import fuzz

pytestmark = pytest.mark.slow

SECONDS = 1.0
"""For one answer: a hundred times what it takes, for a machine that is busy with something else."""

type Tree = tuple


# --- expressions ----------------------------------------------------------------------------------------------------

WHOLE = st.integers(-30, 1500).map(lambda n: ("whole", n))
DECIMAL = st.tuples(st.integers(0, 40), st.integers(1, 99)).map(lambda t: ("decimal", t[0], t[1]))
MIXED = st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(5, 9)).map(lambda t: ("mixed", *t))
NAMES = st.sampled_from([("name", "x"), ("name", "y"), ("name", "pi")])


def trees(leaves: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    """Sums, products, quotients, powers and roots of some leaves."""
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.tuples(st.sampled_from(["+", "-", "*", "/"]), parts, parts),
            st.tuples(st.just("power"), parts, st.integers(1, 3)),
            st.tuples(st.just("root"), parts),
        ),
        max_leaves=6,
    )


NUMBERS = trees(st.one_of(WHOLE, DECIMAL, MIXED))
EXPRESSIONS = trees(st.one_of(WHOLE, DECIMAL, NAMES, NAMES))


def judged(tree: Tree) -> sympy.Expr:
    """What sympy makes of it."""
    kind, *parts = tree
    if kind == "whole":
        return sympy.Integer(parts[0])
    if kind == "decimal":
        return sympy.Integer(parts[0]) + sympy.Rational(parts[1], 100)
    if kind == "mixed":
        return sympy.Integer(parts[0]) + sympy.Rational(parts[1], parts[2])
    if kind == "name":
        return {"pi": sympy.pi, "x": X, "y": Y}[parts[0]]
    if kind == "root":
        return sympy.sqrt(judged(parts[0]))
    if kind == "power":
        return judged(parts[0]) ** parts[1]
    a, b = judged(parts[0]), judged(parts[1])
    if kind == "/":
        return a / b if b != 0 else sympy.nan  # what follows from a division by zero has no value either
    return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b}[kind]()


X, Y = sympy.symbols("x y", positive=True)
POINTS = [{X: sympy.Rational(7, 5), Y: sympy.Rational(11, 3)}, {X: sympy.Rational(2, 9), Y: sympy.Integer(5)}]


def values(tree: Tree) -> list[sympy.Expr] | None:
    """Numbers of 40 digits, at two points; None where there is none."""
    expression = judged(tree)
    found = [expression.subs(point).evalf(40) for point in POINTS]
    return found if all(value.is_number and value.is_finite for value in found) else None


def differ(a: list[sympy.Expr], b: list[sympy.Expr]) -> bool:
    """Whether they are other numbers, beyond rounding."""
    return any(abs(x - y) > 1e-25 * (1 + abs(x) + abs(y)) for x, y in zip(a, b, strict=True))


# --- ways to write them -----------------------------------------------------------------------------------------------


def written(tree: Tree, random: Random) -> str:
    """One of the ways to write a tree, in TeX or plainly."""
    kind, *parts = tree
    if kind == "whole":
        return whole(parts[0], random)
    if kind == "decimal":
        return f"{parts[0]}.{parts[1]:02d}" + random.choice(["", "0"])
    if kind == "mixed":
        return random.choice([r"%d\frac{%d}{%d}", r"%d \dfrac{%d}{%d}", r"%d\frac%d%d", "%d %d/%d"]) % tuple(
            parts
        )
    if kind == "name":
        return random.choice([r"\pi ", "π"]) if parts[0] == "pi" else parts[0]
    if kind == "root":
        inner = written(parts[0], random)
        return random.choice([r"\sqrt{%s}", "√(%s)", "sqrt(%s)", r"\sqrt[2]{%s}", r"{(%s)}^{1/2}"]) % inner
    inner = [part if isinstance(part, int) else written(part, random) for part in parts]
    if kind == "power":
        return random.choice(["{(%s)}^{%d}", "(%s)^%d", "(%s)**%d", r"\left(%s\right)^{%d}"]) % tuple(inner)
    if kind == "/":
        return random.choice(
            [r"\frac{%s}{%s}", r"\dfrac{%s}{%s}", r"{%s \over %s}", "(%s)/(%s)", r"(%s) \div (%s)"]
        ) % tuple(inner)
    sign = {"*": random.choice([r" \cdot ", r"\times ", "*", ""])}.get(
        kind, random.choice([kind, f" {kind} "])
    )
    opening, closing = random.choice([("(", ")"), (r"\left(", r"\right)"), (r"\bigl(", r"\bigr)")])
    return f"{opening}{inner[0]}{closing}{sign}{opening}{inner[1]}{closing}"


def whole(number: int, random: Random) -> str:
    sign = random.choice(["-", "\N{MINUS SIGN}"]) if number < 0 else random.choice(["", "", "+"])
    digits = random.choice([str(abs(number)), f"{abs(number):,}".replace(",", "{,}"), f"{abs(number)}.0"])
    return sign + digits


def response(text: str, random: Random) -> str:
    """An answer as a model gives it."""
    form = random.choice(
        [
            "Answer: %s",
            "**Answer:** $%s$.",
            r"So \boxed{%s}.",
            r"Answer: \(%s\)",
            r"$\boxed{ %s }$",
            "Final Answer: %s\n",
        ]
    )
    return form % random.choice(["%s", "{%s}", r"\displaystyle %s", "(%s)"]) % text


# --- tests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", [NUMBERS, EXPRESSIONS], ids=["numbers", "expressions"])
def test_one_value_written_in_two_ways_is_equal(leaves: st.SearchStrategy[Tree]) -> None:
    @fuzz(250)
    @given(leaves, st.integers(0, 2**32))
    def check(tree: Tree, number: int) -> None:
        random = Random(number)
        if values(tree) is None:
            return
        label, answer = written(tree, random), response(written(tree, random), random)
        assert timed(lambda: dapo_math("", answer, label, {})) == 1.0, (answer, label)

    check()


@pytest.mark.parametrize("leaves", [NUMBERS, EXPRESSIONS], ids=["numbers", "expressions"])
def test_what_is_scored_equal_is_the_same_number(leaves: st.SearchStrategy[Tree]) -> None:
    @fuzz(250)
    @given(leaves, leaves, st.integers(0, 2**32))
    def check(tree: Tree, other: Tree, number: int) -> None:
        random = Random(number)
        changed = mutated(tree, other, random)
        label, answer = written(tree, random), response(written(changed, random), random)
        a, b = values(tree), values(changed)
        if timed(lambda: dapo_math("", answer, label, {})) == 1.0:
            assert a is not None and b is not None and not differ(a, b), (answer, label)

    check()


def mutated(tree: Tree, other: Tree, random: Random) -> Tree:
    """The tree with something in it replaced, so that the two are near each other."""
    kind, *parts = tree
    places = [place for place, part in enumerate(parts) if isinstance(part, tuple)]
    if not places or random.random() < 0.2:
        return random.choice(
            [other, ("+", tree, ("whole", 1)), ("-", ("whole", 0), tree), ("*", tree, ("whole", 1))]
        )
    if kind in "+-*/" and random.random() < 0.3:
        return random.choice([(random.choice("+-*/"), *parts), (kind, parts[1], parts[0])])
    place = random.choice(places)
    return (kind, *parts[:place], mutated(parts[place], other, random), *parts[place + 1 :])


WORDS = r"""
\frac{} \dfrac \sqrt \sqrt[3] \text{ \boxed{ \left( \right) \pm \le \cup \pi \infty \binom \log_2 \sin ^\circ
\begin{pmatrix} \end{pmatrix} \overline \over \{ \} \\ \% \$ \, \! {,} ** ... days cm and or Answer: 12 1,234
999999999 1e99999 10**10**10
"""
SIGNS = "{}()[]|^_+-*/=<>!,;.%$&~'\"#@ \n0123456789xyzABeifπ√½²₁３٣∞é答\x00\ud800"
OTHER_SIGNS = "\N{MULTIPLICATION SIGN}\N{MINUS SIGN}\N{EN DASH}\N{FULLWIDTH COMMA}\N{NO-BREAK SPACE}"
PIECES = [*WORDS.split(), *SIGNS, *OTHER_SIGNS, "9" * 5001]


@fuzz(400)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join), st.integers(1, 300))
def test_any_text_is_scored_in_time_and_without_a_traceback(text: str, times: int) -> None:
    for answer in (text, text * times, rf"\boxed{{{text}}}", rf"\boxed{{{text * times}}}", f"Answer: {text}"):
        found = timed(lambda answer=answer: find_answer(answer))
        timed(lambda answer=answer: final_answer(answer))
        score = timed(lambda answer=answer: dapo_math("", answer, "7/3", {}))
        if found is not None and score == 1.0:
            assert timed(lambda found=found: same_answer("7/3", found)) and not same_answer(found, "7/4")


def timed[T](work: Callable[[], T]) -> T:
    """What the work returns; an error where it took too long."""
    start = time.process_time()
    result = work()
    assert time.process_time() - start < SECONDS
    return result
