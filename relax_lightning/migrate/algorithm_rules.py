"""Rules of the algorithm's flags that belong together."""

from __future__ import annotations

from collections.abc import Iterator

from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.rules import Flags, LeftOut, Outcome, Setting, one_value, scalar

_NO_REFERENCE = "switched off in their PPO, as here without model.reference"


def kl_coef(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """The KL in the rewards, which has no effect on the reference's PPO: nothing there makes the log-probs."""
    value = one_value(flag)
    yield Setting("model.algorithm.kl_coef", value) if value == 0 else LeftOut(_NO_REFERENCE)


def kl_loss(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """The KL in the loss, likewise."""
    yield LeftOut(_NO_REFERENCE)


def tis(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Truncated importance weights; the cap is 2.0 there unless `--tis-clip` says another."""
    if flag.name == "--use-tis":
        cap = flags.text("--tis-clip")
        yield Setting("model.algorithm.importance_cap", 2.0 if cap is None else scalar(cap))
    elif "--use-tis" not in flags:
        yield LeftOut("no effect there without --use-tis")
