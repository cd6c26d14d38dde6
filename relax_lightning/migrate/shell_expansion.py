"""What the words of a script mean: variables, arrays and quotes, as far as they can be told without running it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from relax_lightning.migrate.shell_text import Text, Unknown, Variable
from relax_lightning.migrate.shell_words import after_bracket


@dataclass
class Scope:
    """The variables of a script and of the files it sources."""

    file: Path
    """The script that is being read."""
    variables: dict[str, Text | list[Text]] = field(default_factory=dict)
    unset_arrays: list[str] = field(default_factory=list)
    """Arrays that were asked for and are not there."""
    looked_up: set[str] = field(default_factory=set)
    """Variables that were asked for."""


def expand(word: str, scope: Scope) -> list[Text]:
    """The fields of a word, which are more than one, or none, where an array or an unquoted text is in it.

    Args:
        word: as it is written, quotes and dollars included.
        scope: looked up, and assigned to by `${NAME:=default}`.
    """
    fields = _Fields()
    if word == "~" or word.startswith("~/"):
        fields.add((Variable("HOME"),))
        word = word[1:]
    _expand(word, scope, fields, quoted=False)
    return fields.finished()


def expand_one(word: str, scope: Scope, *, quoted: bool = False) -> Text:
    """The one text of a word where bash splits nothing: the right side of an assignment, a default."""
    fields = _Fields()
    _expand(word, scope, fields, quoted=quoted, splits=False)
    return tuple(piece for text in fields.finished() for piece in text)


class _Fields:
    """Fields as they grow, piece by piece."""

    def __init__(self) -> None:
        self._done: list[Text] = []
        self._pieces: list[str | Variable | Unknown] | None = None

    def add(self, text: Text) -> None:
        """Lengthen the last field; an empty text makes an empty one."""
        self._pieces = self._pieces or []
        for piece in text:
            if isinstance(piece, str) and self._pieces and isinstance(self._pieces[-1], str):
                self._pieces[-1] += piece
            elif piece != "":
                self._pieces.append(piece)

    def end(self) -> None:
        """Let the next piece begin a new field."""
        if self._pieces is not None:
            self._done.append(tuple(self._pieces))
        self._pieces = None

    def add_split(self, text: Text) -> None:
        """Lengthen the last field, with a new one at every white space."""
        for piece in text:
            parts = re.split(r"\s+", piece) if isinstance(piece, str) else [piece]
            for number, part in enumerate(parts):
                if number:
                    self.end()
                if part != "":
                    self.add((part,))

    def finished(self) -> list[Text]:
        self.end()
        return self._done


_SIMPLE = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])")
_PARAMETER = re.compile(r"(?P<name>\w+|[@*])(?P<index>\[(?:@|\*|\d+)\])?(?P<op>:?[-=?+])?(?P<rest>.*)", re.S)
_WHOLE_ARRAY = re.compile(r"\$\{\w+\[[@*]\][^}]*\}")
_SEQUENCE = re.compile(r"\s*seq((?:\s+-?\d+){1,3})\s*")
_OWN_FOLDER = re.compile(r"dirname\b.*?(?:BASH_SOURCE|\$\{?0)[\[\]0}\")\s]*(?P<below>(?:/[\w.-]+)*)", re.S)


def _expand(word: str, scope: Scope, fields: _Fields, *, quoted: bool, splits: bool = True) -> None:
    at = 0
    while at < len(word):
        char = word[at]
        if char == "\\" and (not quoted or word[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n")):
            fields.add((word[at + 1 : at + 2].strip("\n"),))
            at += 2
        elif char == "'" and not quoted:
            end = word.index("'", at + 1)
            fields.add((word[at + 1 : end],))
            at = end + 1
        elif char == '"':
            end = after_bracket(word, at + 1, '"')
            inside = word[at + 1 : end - 1]
            # An array without elements gives no field; every other quote gives one, were it empty.
            if not _WHOLE_ARRAY.fullmatch(inside):
                fields.add(())
            _expand(inside, scope, fields, quoted=True, splits=splits)
            at = end
        elif char in "$`":
            at = _expand_dollar(word, at, scope, fields, quoted=quoted, splits=splits)
        else:
            fields.add((char,))
            at += 1


def _expand_dollar(word: str, at: int, scope: Scope, fields: _Fields, *, quoted: bool, splits: bool) -> int:
    add = fields.add if quoted or not splits else fields.add_split
    if word[at] == "`" or word.startswith("$(", at):
        begin = at + 1 if word[at] == "`" else at + 2
        end = after_bracket(word, begin, "`" if word[at] == "`" else ")")
        add(_command_output(word[begin : end - 1], scope))
        return end
    simple = _SIMPLE.match(word, at)
    if simple is None and not word.startswith("${", at):
        fields.add(("$",))
        return at + 1
    end = after_bracket(word, at + 2, "}") if simple is None else simple.end()
    inside = word[at + 2 : end - 1] if simple is None else simple[1]
    for number, text in enumerate(_parameter(inside, scope, quoted=quoted)):
        if number:
            fields.end()
        add(text)
    return end


def _parameter(inside: str, scope: Scope, *, quoted: bool) -> list[Text]:
    """What `${inside}` stands for: one text, several for a whole array, none for an empty or missing one."""
    found = _PARAMETER.fullmatch(inside)
    if found is None or (found["rest"] and not found["op"]) or not found["name"].isidentifier():
        return [(str(scope.file),) if inside == "0" else (Unknown(f"${{{inside}}}"),)]
    name, op, rest = found["name"], (found["op"] or "").lstrip(":"), found["rest"]
    whole = found["index"] in ("[@]", "[*]")
    texts = _looked_up(name, found["index"], scope)
    if op == "+":
        instead = expand(rest, scope) if whole else [expand_one(rest, scope, quoted=quoted)]
        return [] if texts is None else instead
    if op in ("-", "=") and (texts is None or (found["op"].startswith(":") and texts == [()])):
        default = expand_one(rest, scope, quoted=quoted)
        texts = [(Variable(name, default),) if texts is None else default]
        if op == "=":
            scope.variables[name] = texts[0]
    if texts is None and whole:
        scope.unset_arrays.append(name)
        return []
    return [(Variable(name),)] if texts is None else texts


def _looked_up(name: str, index: str | None, scope: Scope) -> list[Text] | None:
    """The texts that a variable, an element or a whole array stands for; None where it is not set."""
    if name == "BASH_SOURCE":
        return [(str(scope.file),)]
    scope.looked_up.add(name)
    value = scope.variables.get(name)
    if not isinstance(value, list):
        return None if value is None else [value]
    if index in ("[@]", "[*]"):
        return value
    number = int(index[1:-1]) if index else 0
    return value[number : number + 1] or None


def _command_output(source: str, scope: Scope) -> Text:
    """What a command would print, for the two that need no running: `seq`, and where the script lies."""
    if sequence := _SEQUENCE.fullmatch(source):
        return ("\n".join(map(str, _sequence([int(n) for n in sequence[1].split()]))),)
    if own := _OWN_FOLDER.search(source):
        return (os.path.normpath(f"{scope.file.resolve().parent}{own['below']}"),)
    return (Unknown(f"$({source})"),)


def _sequence(arguments: list[int]) -> range:
    match arguments:
        case [last]:
            return range(1, last + 1)
        case [first, last]:
            return range(first, last + 1)
        case [first, step, last]:
            return range(first, last + (1 if step > 0 else -1), step or 1)
        case _:
            raise AssertionError("seq has one to three arguments")
