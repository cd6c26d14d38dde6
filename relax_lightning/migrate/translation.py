"""From the flags of a launch to a configuration: what is set, what was left out, what is missing."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from relax_lightning.config.names import meant
from relax_lightning.migrate.defaults import default_settings, differences
from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.flags import TABLE, rule_of
from relax_lightning.migrate.launch_script import LaunchScript
from relax_lightning.migrate.rules import CannotTranslate, Flags, LeftOut, NotTranslated, Outcome, Setting


@dataclass(frozen=True)
class Remark:
    """Why a flag is not among the keys; or, without a flag, what about the script could not be told."""

    flag: str
    reason: str

    def __str__(self) -> str:
        return f"{self.flag}: {self.reason}" if self.flag else self.reason


@dataclass
class Translation:
    """A launch script in the words of this configuration."""

    settings: list[Setting] = field(default_factory=list)
    """Each with its origin."""
    left_out: list[Remark] = field(default_factory=list)
    """On flags that need no key."""
    not_translated: list[Remark] = field(default_factory=list)
    """On flags without a counterpart, and on parts of the script that could not be told."""
    differences: list[str] = field(default_factory=list)
    """Where the two systems mean different things by the same words."""


def translate(script: LaunchScript) -> Translation:
    """Every flag of a launch script, by the table; then the reference's defaults that differ from ours."""
    flags = Flags(script.flags)
    translation = Translation(differences=list(differences(flags)))
    for flag in script.flags:
        if flags.by_name[flag.name] is not flag:
            translation.left_out.append(Remark(str(flag), "given again later"))
            continue
        for outcome in _outcomes(flag, flags):
            _add(translation, flag, outcome)
    for setting in default_settings(flags):
        _set(translation, setting)
    translation.not_translated += [Remark("", note) for note in script.notes]
    translation.left_out += [
        Remark(flag, f"in {name}, which the launch does not use") for flag, name in script.unused
    ]
    return translation


def _outcomes(flag: Flag, flags: Flags) -> list[Outcome]:
    rule = rule_of(flag.name)
    if rule is None:
        return [NotTranslated(_unknown(flag))]
    try:
        return list(rule(flag, flags))
    except CannotTranslate as error:
        return [NotTranslated(str(error))]


def _add(translation: Translation, flag: Flag, outcome: Outcome) -> None:
    if isinstance(outcome, Setting):
        _set(translation, Setting(outcome.key, outcome.value, outcome.origin or str(flag)))
    elif isinstance(outcome, LeftOut):
        translation.left_out.append(Remark(str(flag), outcome.reason))
    else:
        translation.not_translated.append(Remark(str(flag), outcome.reason))


def _set(translation: Translation, setting: Setting) -> None:
    before = next((s for s in translation.settings if s.key == setting.key), None)
    if before is None:
        translation.settings.append(setting)
    elif before.value != setting.value:
        reason = f"{before.key} comes from {before.origin}"
        translation.left_out.append(Remark(str(setting.origin), reason))


def _unknown(flag: Flag) -> str:
    near = difflib.get_close_matches(flag.name, TABLE, n=1, cutoff=0.85)
    ours = meant(flag.name.removeprefix("--"), [])
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"perhaps {ours} here"
        if ours
        else "set it by hand if it matters"
    )
    return f"an unknown flag; {hint}"
