"""Rules of the flags that name checkpoints and folders."""

from __future__ import annotations

from collections.abc import Iterator

from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.rules import Flags, LeftOut, Outcome, Setting, as_text, text_value
from relax_lightning.migrate.shell_text import Text


def hf_checkpoint(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """The model, whose `config.json` also answers the flags of the model file."""
    yield Setting("model.actor.hf_checkpoint", _folder(text_value(flag)))


def save(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """The actor's checkpoint root, and the run folder around it, for which the reference has no flag."""
    root, critic = _folder(text_value(flag)), flags.text("--critic-save")
    parent = _parent(root)
    shared = critic is not None and parent is not None and parent == _parent(_folder(as_text(critic)))
    run_folder = parent if shared else root
    yield Setting("trainer.default_root_dir", run_folder, f"the run folder, from {flag}")
    yield Setting("model.actor.save", root)


def critic_save(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """The critic's checkpoint root."""
    yield Setting("model.critic.save", _folder(text_value(flag)))


def load(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """What both roles resume from; a root that is also saved to is what `--ckpt_path auto` means."""
    root = _folder(text_value(flag))
    if root in _roots(flags, "--hf-checkpoint", "--ref-load"):
        yield LeftOut("the model itself: both roles start from hf_checkpoint")
    elif root in _roots(flags, "--save"):
        yield LeftOut(
            "the same as --save: start `fit` with --ckpt_path auto, which resumes where there is something"
        )
    else:
        yield Setting("model.actor.load", root)


def critic_load(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """The same for the critic."""
    root = _folder(text_value(flag))
    if root in _roots(flags, "--hf-checkpoint", "--ref-load"):
        yield LeftOut("the model itself: both roles start from hf_checkpoint")
    elif root in _roots(flags, "--critic-save"):
        yield LeftOut("the same as --critic-save: --ckpt_path auto resumes both roles")
    else:
        yield Setting("model.critic.load", root)


def _roots(flags: Flags, *names: str) -> list[str]:
    texts: list[Text | None] = [flags.text(name) for name in names]
    return [_folder(as_text(text)) for text in texts if text is not None]


def _folder(path: str) -> str:
    return path.rstrip("/") or path


def _parent(folder: str) -> str | None:
    # A slash inside `${oc.env:NAME,/default}` parts no folders.
    at = folder.rfind("/")
    return folder[:at] if at > folder.rfind("}") and at > 0 else None
