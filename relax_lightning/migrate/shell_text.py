"""Texts of a script that are known only in part: some of them come from the environment of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """A variable that the script takes from its environment."""

    name: str
    default: Text | None = None


@dataclass(frozen=True)
class Unknown:
    """What only bash could find out: the output of a command, an argument of the script."""

    source: str


Piece = str | Variable | Unknown
Text = tuple[Piece, ...]
"""Pieces that stand one after the other."""

# OmegaConf would read other defaults as numbers or grammar: 1.10 would come out as 1.1.
_PLAIN_DEFAULT = re.compile(r"(?!(?:null|true|false|inf|nan)$)[A-Za-z_/][\w./+@:-]*|0|[1-9]\d*", re.I)


def literal(text: Text) -> str | None:
    """The text where it is known whole, else None."""
    known = [piece for piece in text if isinstance(piece, str)]
    return "".join(known) if len(known) == len(text) else None


def joined(texts: list[Text], between: str) -> Text:
    """Several texts as one."""
    pieces: list[Piece] = []
    for number, text in enumerate(texts):
        for piece in ((between,) if number else ()) + text:
            if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
                pieces[-1] += piece
            elif piece != "":
                pieces.append(piece)
    return tuple(pieces)


def default_of(text: Text) -> tuple[str | None, set[str]]:
    """The text where every variable has its default, with the names of these; None where one has none."""
    known, names = "", variable_names(text)
    for piece in text:
        inner = piece if isinstance(piece, str) else None
        if isinstance(piece, Variable) and piece.default is not None:
            inner, _ = default_of(piece.default)
        if inner is None:
            return None, names
        known += inner
    return known, names


def unknown_source(text: Text) -> str | None:
    """What in the text only bash could find out, or None."""
    return next((piece.source for piece in _all_pieces(text) if isinstance(piece, Unknown)), None)


def variable_names(text: Text) -> set[str]:
    """The variables that the text takes from the environment."""
    return {piece.name for piece in _all_pieces(text) if isinstance(piece, Variable)}


def as_source(text: Text) -> str:
    """The text as a script would have it."""
    return "".join(map(_source, text))


def shown(text: Text) -> str:
    """The same in one line, for a comment."""
    return re.sub(r"\s+", " ", as_source(text))


def interpolation(text: Text) -> str:
    """The text with every variable as `${oc.env:NAME}` or `${oc.env:NAME,default}`; nothing in it is unknown."""
    return "".join(map(_interpolated, text))


def _all_pieces(text: Text) -> Iterator[Piece]:
    for piece in text:
        yield piece
        if isinstance(piece, Variable) and piece.default is not None:
            yield from _all_pieces(piece.default)


def _source(piece: Piece) -> str:
    if isinstance(piece, Variable):
        default = "" if piece.default is None else f":-{as_source(piece.default)}"
        return f"${{{piece.name}{default}}}"
    return piece if isinstance(piece, str) else piece.source


def _interpolated(piece: Piece) -> str:
    assert not isinstance(piece, Unknown), "a text with something unknown in it has no value"
    if isinstance(piece, str):
        return piece.replace("${", "\\${")
    if piece.default is None:
        return f"${{oc.env:{piece.name}}}"
    return f"${{oc.env:{piece.name},{_default(piece.default)}}}"


def _default(text: Text) -> str:
    plain = all(not isinstance(p, str) or _PLAIN_DEFAULT.fullmatch(p) for p in text)
    if text and plain:
        return interpolation(text)
    quoted = [p.replace("\\", "\\\\").replace("'", "\\'") if isinstance(p, str) else p for p in text]
    return f"'{interpolation(tuple(quoted))}'"
