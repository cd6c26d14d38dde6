"""Rules of the flags that name checkpoints and folders."""

from __future__ import annotations

from collections.abc import Iterator

from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.rules import Flags, LeftOut, Outcome, Rule, Setting, as_text, text_value


def folder(flag: Flag) -> str:
    """The one value of a flag, without a slash at its end."""
    return _bare(text_value(flag))


def save(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """The actor's checkpoint root, and the run folder around it, for which the reference has no flag."""
    root, critic = folder(flag), flags.text("--critic-save")
    parent = _parent(root)
    shared = critic is not None and parent is not None and parent == _parent(_bare(as_text(critic)))
    yield Setting("trainer.default_root_dir", parent if shared else root, f"the run folder, from {flag}")
    yield Setting("model.actor.save", root)


def load(role: str, saved_to: str) -> Rule:
    """The rule of what a role resumes from; a root that is also saved to is what `--ckpt_path auto` means."""
    resumes = {
        "actor": "start `fit` with --ckpt_path auto, which resumes where there is something",
        "critic": "--ckpt_path auto resumes both roles",
    }

    def rule(flag: Flag, flags: Flags) -> Iterator[Outcome]:
        root = folder(flag)
        texts = {name: flags.text(name) for name in ("--hf-checkpoint", "--ref-load", saved_to)}
        same = [name for name, text in texts.items() if text is not None and _bare(as_text(text)) == root]
        if not same:
            yield Setting(f"model.{role}.load", root)
        elif same == [saved_to]:
            yield LeftOut(f"the same as {saved_to}: {resumes[role]}")
        else:
            yield LeftOut("the model itself: both roles start from hf_checkpoint")

    return rule


def _bare(path: str) -> str:
    return path.rstrip("/") or path


def _parent(path: str) -> str | None:
    # A slash inside `${oc.env:NAME,/default}` parts no folders.
    at = path.rfind("/")
    return path[:at] if at > path.rfind("}") and at > 0 else None
