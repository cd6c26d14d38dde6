"""A bash script cut into commands, and these into words. Nothing is run, and nothing is expanded yet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Command:
    """One simple command, its words as they are written, quotes and dollars included."""

    line: int
    conditional: bool
    """Inside an `if`, a loop, a `case`, a function, or behind `&&` or `||`."""
    uncertain: bool = False
    """The same, but behind `&&` or `||` only where a test or `||` stands there: not behind `cd x &&`."""
    words: list[str] = field(default_factory=list)
    arrays: dict[int, list[str]] = field(default_factory=dict)
    """By position in `words`: what stands in the parentheses of `NAME=(...)`, of which the word is `NAME=`."""


@dataclass(frozen=True)
class Token:
    """A word, or an operator such as `|`, `;`, `(` or the end of a line."""

    text: str
    line: int
    is_word: bool
    follows: bool
    """Whether it touches the token before it."""


def read_commands(text: str) -> list[Command]:
    """The simple commands of a script, in order.

    Raises:
        ValueError: A quote, a brace or a parenthesis is never closed.
    """
    return list(_commands(list(_tokens(text))))


_OPENING = frozenset({"if", "for", "while", "until", "case", "select", "{"})
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_BETWEEN = frozenset({"then", "do", "else", "elif", "!", "time"})
_KEYWORDS = _OPENING | _CLOSING | _BETWEEN
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*([^\s;&|<>()]+)")
_OPERATOR = re.compile(r"&&|\|\||;;|&?>>?&?|<<<|<&?|[;&|()\n]")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")


def _commands(tokens: list[Token]) -> Iterator[Command]:
    depth, chained, doubtful, at = 0, False, False, 0
    command: Command | None = None
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token.is_word and token.text in _KEYWORDS and _may_be_keyword(command):
            depth = max(0, depth + (token.text in _OPENING) - (token.text in _CLOSING))
            command = None
        elif token.is_word:
            command = command or Command(token.line, depth > 0 or chained, depth > 0 or doubtful)
            command.words.append(token.text)
        elif token.text[0] in "<>" or token.text.startswith("&>"):
            at += 1  # the file of a redirection
        elif command is not None and _opens_array(tokens, at - 1):
            at = _take_array(tokens, at, command)
        elif command is not None or token.text != "\n":
            if command is not None:
                yield command
            chained = token.text in ("&&", "||")
            tests = command is not None and command.words[0] in ("[", "[[", "test")
            doubtful = token.text == "||" or (token.text == "&&" and (doubtful or tests))
            command = None
    if command is not None:
        yield command


def _may_be_keyword(command: Command | None) -> bool:
    return command is None or command.words[0] == "function"


def _opens_array(tokens: list[Token], at: int) -> bool:
    before = tokens[at - 1] if at else None
    return (
        tokens[at].text == "("
        and tokens[at].follows
        and before is not None
        and _ARRAY.fullmatch(before.text) is not None
    )


def _take_array(tokens: list[Token], at: int, command: Command) -> int:
    elements: list[str] = []
    while at < len(tokens) and tokens[at].text != ")":
        if tokens[at].is_word:
            elements.append(tokens[at].text)
        at += 1
    if at == len(tokens):
        raise ValueError(
            f"wanted the closing ) of {command.words[-1]}( in line {command.line}, got none; add it"
        )
    command.arrays[len(command.words) - 1] = elements
    return at + 1


def _tokens(text: str) -> Iterator[Token]:
    at, line, end, here_documents = 0, 1, -1, list[str]()
    while at < len(text):
        char, start, follows = text[at], at, at == end
        if char in " \t\r":
            at += 1
        elif text.startswith("\\\n", at):
            at += 2
        elif char == "#":
            at = _line_end(text, at)
        elif match := _HERE_DOCUMENT.match(text, at):
            at = match.end()
            here_documents.append(match[1].strip("'\"\\"))
        elif match := _OPERATOR.match(text, at):
            end = at = match.end()
            yield Token(match[0], line, False, follows)
            if char == "\n":
                at, here_documents = _after_here_documents(text, at, here_documents), []
        else:
            end = at = _word_end(text, at, line)
            # The number of a redirected stream, as in 2>&1, is no word.
            if not (text[start:at].isdigit() and text[at : at + 1] in ("<", ">")):
                yield Token(text[start:at].replace("\\\n", ""), line, True, follows)
        line += text.count("\n", start, at)


def _word_end(text: str, at: int, line: int) -> int:
    try:
        while at < len(text) and text[at] not in " \t\r\n;&|<>()":
            at = _after_part(text, at, "")
    except IndexError:
        message = f"wanted the end of the quote or bracket that begins in line {line}, got none; close it"
        raise ValueError(message) from None
    return at


def after_bracket(text: str, at: int, closing: str) -> int:
    """The place after the `closing` bracket or quote that belongs to what opened just before `at`.

    Raises:
        IndexError: There is none.
    """
    while text[at] != closing:
        at = _after_part(text, at, closing)
    return at + 1


def _after_part(text: str, at: int, within: str) -> int:
    """The place after one character, quote or expansion."""
    char, two = text[at], text[at : at + 2]
    if char == "\\":
        return at + 2
    if char == "'" and within != '"':
        return _after_literal(text, at + 1)
    if two in ("${", "$("):
        return after_bracket(text, at + 2, "}" if two == "${" else ")")
    if char in '"`':
        return after_bracket(text, at + 1, char)
    if char == "(" and within == ")":
        return after_bracket(text, at + 1, ")")
    return at + 1


def _after_literal(text: str, at: int) -> int:
    while text[at] != "'":
        at += 1
    return at + 1


def _after_here_documents(text: str, at: int, delimiters: list[str]) -> int:
    for delimiter in delimiters:
        found = False
        while at < len(text) and not found:
            end = _line_end(text, at)
            found, at = text[at:end].strip("\t") == delimiter, end + 1
    return min(at, len(text))


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found == -1 else found
