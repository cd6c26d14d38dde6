"""What `relax-lightning plan` prints, and its exit status."""

from __future__ import annotations

import json
import sys

from relax_lightning.config.faults import Problem
from relax_lightning.config.loader import to_dict
from relax_lightning.config.tree import Config
from relax_lightning.plan.report import FORMAT, build_plan
from relax_lightning.plan.text import print_plan


def print_unreadable(problems: list[str]) -> int:
    """Print the JSON of a configuration that could not be read at all; returns 1."""
    told = [
        dict(zip(("key", "message"), line.split(": ", 1), strict=True), severity="error") for line in problems
    ]
    print(json.dumps({"format": FORMAT, "ok": False, "problems": told}, indent=2))
    return 1


def report(
    config: Config,
    problems: list[Problem],
    *,
    check_files: bool,
    resume: str | None,
    gpu_memory: int | None,
    as_json: bool,
) -> int:
    """Print the plan and the problems.

    Returns:
        0, or 1 where some problem is an error.
    """
    plan = build_plan(config, check_files=check_files, resume=resume, gpu_memory=gpu_memory)
    errors = [problem for problem in problems if problem.severity == "error"]
    if as_json:
        told = [{"key": p.key, "message": p.message, "severity": p.severity} for p in problems]
        document = {"format": FORMAT, "ok": not errors, "problems": told, **to_dict(plan)}
        print(json.dumps(document, indent=2))
        return 1 if errors else 0
    print_plan(plan)
    for problem in problems:
        stream = sys.stderr if problem.severity == "error" else sys.stdout
        print(f"{problem.severity}: {' '.join(str(problem).split())}", file=stream)
    warned = len(problems) - len(errors)
    print(f"{len(errors)} error{'s' * (len(errors) != 1)}, {warned} warning{'s' * (warned != 1)}")
    return 1 if errors else 0
