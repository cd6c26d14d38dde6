"""What a configuration means before anything runs: its faults, and the plan of the run. Imports no torch."""

from relax_lightning.config.faults import Problem
from relax_lightning.plan.checks import check
from relax_lightning.plan.schedule import optimizer_steps

__all__ = ["Problem", "check", "optimizer_steps"]
