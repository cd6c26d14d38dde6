"""Checks of a configuration given as overrides."""

from relax_lightning.config import load
from relax_lightning.plan import check


def found(base, *more, **options):
    return [(problem.severity, str(problem)) for problem in check(load([], [*base, *more]), **options)]


def only(base, *more, severity="error", **options):
    ((kind, line),) = found(base, *more, **options)
    assert kind == severity
    return line
