"""Where a handler is written: its syntax tree with true positions, and what its names mean outside of it."""

import ast
import builtins
import copy
import functools
import linecache
import os
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anyprobe.core.errors import HandlerError

Definition = ast.FunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Source:
    """One Python function as it was written."""

    function: types.FunctionType
    tree: Definition

    @property
    def file(self) -> str:
        """The file it stands in."""
        return self.function.__code__.co_filename

    @property
    def name(self) -> str:
        """Its name."""
        return self.function.__name__

    def error(self, node: ast.AST, message: str, instead: str = "") -> HandlerError:
        """Return the error that points at a node."""
        line, column = getattr(node, "lineno", self.tree.lineno), getattr(node, "col_offset", self.tree.col_offset)
        text = linecache.getline(self.file, line).rstrip("\n")
        # the parser counts bytes, people count characters
        column = len(text.encode()[:column].decode(errors="replace"))
        return HandlerError(message, file=self.file, line=line, column=column + 1, source=text, instead=instead)

    def shown(self, node: ast.AST) -> str:
        """Return an expression as text, with the file and the line, if it is in one that the user knows."""
        line = getattr(node, "lineno", self.tree.lineno)
        where = "" if self.file.startswith("<") else f" ({os.path.basename(self.file)}:{line})"
        return f"{ast.unparse(node)}{where}"

    def captured(self, name: str) -> Any:  # noqa: ANN401 - whatever the name means in Python
        """Return what a name means outside of the function; raise ``KeyError`` if nothing."""
        code = self.function.__code__
        if name in code.co_freevars:
            cell = (self.function.__closure__ or ())[code.co_freevars.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                raise KeyError(name) from None
        if name in self.function.__globals__:
            return self.function.__globals__[name]
        return vars(builtins)[name]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as a handler of its own: one of the same parameters that is true wherever it runs."""

    function: Callable[..., Any]

    def __call__(self, *values: object) -> bool:
        """Return whether the condition holds for some values, as CPython computes it."""
        return bool(self.function(*values))

    def source(self) -> Source:
        """Return the handler's source."""
        found = source_of(self.function)
        tree = copy.copy(found.tree)
        always = ast.copy_location(ast.Constant(value=True), tree)
        if isinstance(tree, ast.Lambda):
            tree.body = always
        else:
            tree.body = [ast.copy_location(ast.Return(always), tree)]
        return Source(found.function, tree)


def source_of(function: object) -> Source:
    """Return the source of a Python function."""
    if isinstance(function, Condition):
        return function.source()
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, types.FunctionType):
        raise HandlerError(f"{function!r} is no Python function", instead="def handler(size: u64): ...")
    code = function.__code__
    lines = tuple(linecache.getlines(code.co_filename, function.__globals__))
    found = [node for node in _definitions(code.co_filename, lines) if _is_definition(node, code)]
    if not found:
        raise HandlerError(
            f"the source of {function.__name__} is not available ({code.co_filename})",
            instead="put the handler into a file; what exec() and eval() define has no source",
        )
    return Source(function, found[-1])


@functools.lru_cache(maxsize=8)
def _definitions(file: str, lines: tuple[str, ...]) -> tuple[Definition, ...]:
    try:
        tree = ast.parse("".join(lines), file)
    except SyntaxError:
        return ()  # the file has changed since it was imported
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda))


def _is_definition(node: Definition, code: types.CodeType) -> bool:
    if isinstance(node, ast.FunctionDef):
        if node.name != code.co_name:
            return False
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        return first == code.co_firstlineno
    if code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
        # several lambdas may stand on one line; the code's own positions tell them apart
        places = [each for each in code.co_positions() if each[0] is not None and each[2] is not None and each[3]]
        body = node.body
        return any(
            (line, column, end) == (body.lineno, body.col_offset, body.end_col_offset)
            for line, _, column, end in places
        )
    return False
