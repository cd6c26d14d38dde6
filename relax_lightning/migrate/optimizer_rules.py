"""Rules of the optimizers' flags that belong together."""

from __future__ import annotations

from collections.abc import Iterator

from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.rules import Flags, LeftOut, NotTranslated, Outcome, Setting, scalar


def betas(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Adam's two decay rates, one key here; 0.9 and 0.999 are Megatron's defaults."""
    pair = [flags.text("--adam-beta1") or ("0.9",), flags.text("--adam-beta2") or ("0.999",)]
    both = " ".join(str(flags.by_name[name]) for name in ("--adam-beta1", "--adam-beta2") if name in flags)
    if flag.name == "--adam-beta1" or "--adam-beta1" not in flags:
        yield Setting("model.actor.optimizer.betas", [scalar(text) for text in pair], both)


def decay_iters(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """How long the learning rate falls, unless it is constant; the reference's default is a linear decay."""
    if flags.known("--lr-decay-style") == "constant":
        yield LeftOut("no effect with --lr-decay-style constant")
    else:
        yield NotTranslated("a decay runs over all optimizer steps of the run here")


def cpu_offload(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """The share of optimizer state on the host: all of it, unless `--optimizer-offload-fraction` says less."""
    key = "model.actor.optimizer.cpu_offload_fraction"
    if flag.name == "--optimizer-cpu-offload":
        fraction = flags.text("--optimizer-offload-fraction")
        yield Setting(key, 1.0 if fraction is None else scalar(fraction))
    elif "--optimizer-cpu-offload" not in flags:
        yield LeftOut("no effect there without --optimizer-cpu-offload")
