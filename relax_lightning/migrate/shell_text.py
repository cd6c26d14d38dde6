"""Texts of a script that are known only in part: some of them come from the environment of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate


@dataclass(frozen=True)
class Variable:
    """A variable that the script takes from its environment."""

    name: str
    default: Text | None = None


@dataclass(frozen=True)
class Unknown:
    """What only bash could find out: the output of a command, an argument of the script."""

    source: str


Text = tuple[str | Variable | Unknown, ...]
"""Pieces that stand one after the other."""

# OmegaConf would read other defaults as numbers or grammar: 1.10 would come out as 1.1.
_PLAIN_DEFAULT = re.compile(r"(?!(?:null|true|false|inf|nan)$)[A-Za-z_/][\w./+@:-]*|0|[1-9]\d*", re.I)


def literal(text: Text) -> str | None:
    """The text where it is known whole, else None."""
    known = [piece for piece in text if isinstance(piece, str)]
    return "".join(known) if len(known) == len(text) else None


def joined(texts: list[Text], between: str) -> Text:
    """Several texts as one."""
    pieces: list[str | Variable | Unknown] = []
    for number, text in enumerate(texts):
        for piece in ((between,) if number else ()) + text:
            if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
                pieces[-1] += piece
            else:
                pieces.append(piece)
    return tuple(pieces)


def cut(text: Text, op: str, pattern: str) -> Text | None:
    """The text without what `%`, `%%`, `#` or `##` take off its end or beginning; None where that is not known."""
    at_end, longest = op[0] == "%", len(op) == 2
    if not text:
        return text
    # The longest match that begins or ends with `*` takes all on its far side along, known or not.
    from_far = longest and pattern[-1 if at_end else 0 :][:1] == "*"
    piece = text[-1] if at_end != from_far else text[0]
    if not isinstance(piece, str) or len(piece) > 2000:
        return None
    matches = re.compile(translate(pattern)).match
    sizes = [n for n in range(len(piece) + 1) if matches(piece[n:] if at_end else piece[:n])]
    if not sizes:
        return text if len(text) == 1 or ("*" not in pattern and len(piece) >= len(pattern)) else None
    size = (min if longest == at_end else max)(sizes)
    if at_end:
        return (*(() if from_far else text[:-1]), piece[:size])
    return (piece[size:], *(() if from_far else text[1:]))


def braces(word: str) -> list[Text] | None:
    """The fields of `a{b,c}d` and `{1..3}`; None of any other word."""
    found = re.fullmatch(
        r"([^{}'\"$`\\]*)\{([^{}'\"$`\\\s]*,[^{}'\"$`\\\s]*|(\d{1,4})\.\.(\d{1,4}))\}([^{}'\"$`\\]*)", word
    )
    if found is None:
        return None
    inside = (
        found[2].split(",") if found[3] is None else list(map(str, range(int(found[3]), int(found[4]) + 1)))
    )
    return [(found[1] + part + found[5],) for part in inside]


def default_of(text: Text) -> tuple[str | None, set[str]]:
    """The text where every variable has its default, with the names of these; None where one has none."""
    known, names = "", set[str]()
    for piece in text:
        if isinstance(piece, Variable) and piece.default is not None:
            inner, more = default_of(piece.default)
            names |= {piece.name, *more}
        else:
            inner = piece if isinstance(piece, str) else None
        if inner is None:
            return None, names
        known += inner
    return known, names


def as_source(text: Text) -> str:
    """The text as a script that is read once more would have it."""
    return "".join(piece if isinstance(piece, str) else _shown_piece(piece) for piece in text)


def unknown_source(text: Text) -> str | None:
    """What in the text only bash could find out, or None."""
    for piece in text:
        if isinstance(piece, Unknown):
            return piece.source
        inner = None if isinstance(piece, str) else unknown_source(piece.default or ())
        if inner is not None:
            return inner
    return None


def variable_names(text: Text) -> set[str]:
    """The variables that the text takes from the environment."""
    variables = [piece for piece in text if isinstance(piece, Variable)]
    nested = [variable_names(variable.default or ()) for variable in variables]
    return {variable.name for variable in variables}.union(*nested)


def shown(text: Text) -> str:
    """The text as a shell would have it, for a comment."""
    return "".join(_shown_piece(piece) for piece in text)


def interpolation(text: Text) -> str:
    """The text with every variable as `${oc.env:NAME}` or `${oc.env:NAME,default}`; nothing in it is unknown."""
    return "".join(_interpolated(piece) for piece in text)


def _shown_piece(piece: str | Variable | Unknown) -> str:
    if isinstance(piece, Unknown):
        return piece.source
    if isinstance(piece, str):
        return re.sub(r"\s+", " ", piece)
    default = "" if piece.default is None else f":-{shown(piece.default)}"
    return f"${{{piece.name}{default}}}"


def _interpolated(piece: str | Variable | Unknown) -> str:
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
