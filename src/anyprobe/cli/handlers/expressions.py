"""Expressions of the command line: handlers' language, read so that each mistake can be pointed at."""

import ast
import io
import itertools
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from anyprobe.core.errors import HandlerError


class Expression(NamedTuple):
    """One expression of an option: its text, where that begins, and the names that it uses."""

    option: str
    whole: str
    """The text of the whole option."""
    text: str
    label: str
    """What it is shown as: the name that it was given, or its text."""
    line: int
    column: int
    names: tuple[tuple[str, int, int], ...]
    """Names, with line and column in the whole."""
    called: frozenset[str] = frozenset()
    """Names that are called."""

    def uses(self, name: str) -> bool:
        """Return whether a name occurs."""
        return any(each == name for each, _, _ in self.names)

    def error(self, line: int, column: int, message: str, instead: str = "") -> HandlerError:
        """Return the error that points at a place in the option's text; both numbers begin with 0."""
        return _error(self.option, self.whole, line, column, message, instead)


_DEEPEST = 200
"""Levels of an expression at most: what compiles it calls itself for each."""


def parse_all(option: str, text: str, *, may_repeat: bool = False) -> tuple[Expression, ...]:
    """Read expressions separated by commas, each with a name before it (``size=arg0``) or without.

    ``may_repeat``: whether two may be called the same, as what is told by its place is.
    """
    found = tuple(_expression(option, text, part) for part in _parts(option, text))
    labels = [each.label for each in found]
    for at, each in enumerate(() if may_repeat else found):
        if each.label in labels[:at]:
            raise each.error(each.line, each.column, f"another one is called {each.label!r}, too", "a=arg0, b=arg1")
    return found


def parse_one(option: str, text: str) -> Expression:
    """Read one expression."""
    found = parse_all(option, text)
    if len(found) > 1:
        raise found[1].error(found[1].line, found[1].column, "one expression is wanted here")
    return found[0]


_BRACKETS = {"(": ")", "[": "]", "{": "}"}


class _Part(NamedTuple):
    """The text between two commas: a name, an expression, and where that begins."""

    name: str
    text: str
    line: int
    column: int


def _parts(option: str, text: str) -> list[_Part]:
    """Return what commas that are in no brackets separate."""
    if not any(each in text for each in ",=()[]{}"):  # tokenize compiles its pattern, which takes some milliseconds
        return [_part(option, text, "", 0, len(text))]
    lines = text.splitlines(keepends=True) or [""]
    starts = [0, *itertools.accumulate(map(len, lines))]
    parts: list[_Part] = []
    opened: list[tuple[int, int, str]] = []
    begin, name = 0, ""
    before: list[str] = []
    for token in _tokens(text):
        line, column, word = token.start[0] - 1, token.start[1], token.string
        at = starts[line] + column if line < len(lines) else len(text)
        if word in _BRACKETS:
            opened.append((line, column, word))
        elif word in _BRACKETS.values():
            if not opened or _BRACKETS[opened.pop()[2]] != word:
                raise _error(option, text, line, column, f"this {word!r} is unmatched")
        elif word == "=" and not opened and len(before) == 1 and before[0].isidentifier():
            name, begin = before[0], at + 1
        elif word == "," and not opened:
            parts.append(_part(option, text, name, begin, at))
            before, begin, name = [], at + 1, ""
            continue
        before.append(word)
    if opened:
        line, column, word = opened[-1]
        raise _error(option, text, line, column, f"this {word!r} is never closed")
    if text[begin:].strip() or name or not parts:
        parts.append(_part(option, text, name, begin, len(text)))
    return parts


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """Return the tokens of a text; what is wrong with it is said when it is parsed."""
    layout = {tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT}
    with suppress(tokenize.TokenError, SyntaxError):
        yield from (each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type not in layout)


def _part(option: str, text: str, name: str, begin: int, end: int) -> _Part:
    inner = text[begin:end]
    begin += len(inner) - len(inner.lstrip())
    line = text.count("\n", 0, begin)
    column = begin - (text.rfind("\n", 0, begin) + 1)
    if not inner.strip():
        raise _error(option, text, line, column, "an expression is missing", "arg0, retval, tid, cstr(arg0, 64)")
    return _Part(name, inner.strip(), line, column)


def _expression(option: str, text: str, part: _Part) -> Expression:
    wrapped = f"({part.text}\n)"

    def place(line: int, column: int) -> tuple[int, int]:
        """Turn line and column of the wrapped text, in bytes, into those of the option's text, in characters."""
        content = (wrapped.splitlines()[line - 1 : line] or [""])[0]
        column = len(content.encode()[:column].decode(errors="replace"))
        return part.line + line - 1, column + (part.column - 1 if line == 1 else 0)

    node: ast.expr | None
    try:
        node = ast.parse(wrapped, option, mode="eval").body
    except (SyntaxError, ValueError) as error:
        line, offset = (error.lineno or 1, error.offset or 1) if isinstance(error, SyntaxError) else (1, 1)
        last = len(part.text.splitlines())
        where = place(line, offset - 1) if line <= last else place(last, 1 << 16)
        raise _error(option, text, *where, error.msg if isinstance(error, SyntaxError) else str(error)) from None
    except (RecursionError, MemoryError):
        node = None
    if node is None or _is_too_deep(node):
        raise _error(option, text, part.line, part.column, f"it has more than {_DEEPEST} parts within each other")
    names = [(each.id, *place(each.lineno, each.col_offset)) for each in ast.walk(node) if isinstance(each, ast.Name)]
    called = frozenset(
        each.func.id for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
    )
    label = part.name or " ".join(part.text.split())
    return Expression(option, text, part.text, label, part.line, part.column, tuple(names), called)


def _is_too_deep(node: ast.expr) -> bool:
    level: list[ast.AST] = [node]
    for _ in range(_DEEPEST):
        level = [inner for each in level for inner in ast.iter_child_nodes(each)]
        if not level:
            return False
    return True


def _error(option: str, text: str, line: int, column: int, message: str, instead: str = "") -> HandlerError:
    lines = text.splitlines() or [""]
    line = min(line, len(lines) - 1)
    column = min(max(column, 0), len(lines[line]))
    return HandlerError(message, file=option, line=line + 1, column=column + 1, source=lines[line], instead=instead)
