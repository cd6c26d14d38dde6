"""Holds math-verify against the pairs of answers.py: `pip install 'math-verify[antlr4-9-3]'`, then run this file."""

import logging
import time

from answers import EQUAL, OTHER
from math_verify import parse, verify

logging.disable(logging.CRITICAL)


def score(answer, label):
    return verify(parse(f"\\boxed{{{label}}}"), parse(f"\\boxed{{{answer}}}"))


def main():
    pairs = [(answer, label, True) for label, *answers in EQUAL for answer in answers]
    pairs += [(answer, label, False) for pair in OTHER for answer, label in (pair, pair[::-1])]
    wrong, seconds = [], []
    for answer, label, wanted in pairs:
        start = time.perf_counter()
        if score(answer, label) != wanted:
            wrong.append((answer, label, wanted))
        seconds.append(time.perf_counter() - start)
    for answer, label, wanted in wrong:
        print("missed" if wanted else "EQUAL ", repr(answer), repr(label))
    num_equal = sum(not wanted for _, _, wanted in wrong)
    print(
        f"of {len(pairs)} pairs {num_equal} others scored equal, {len(wrong) - num_equal} equal ones missed"
    )
    print(f"median {sorted(seconds)[len(seconds) // 2]:.4f} s, slowest {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
