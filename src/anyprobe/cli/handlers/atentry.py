"""What expressions read by a call's parameters: that is read at the entry, and kept until the return.

So ``cstr(arg1, 16)`` is the text that the function was given, whatever the program has put there since. What is to be
read at the return is written in ``at_return(…)``.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from anyprobe.cli.handlers.expressions import Expression
from anyprobe.cli.handlers.handlertext import AT_RETURN, FUNCTIONS, TYPES

READING = frozenset({"cstr", "buf"})
_PURE = frozenset({*FUNCTIONS, *TYPES})
_USUAL = 64


class Piece(NamedTuple):
    """A part of an expression that is worked out at the entry."""

    name: str
    """Under which it is kept."""
    expression: Expression
    is_whole: bool
    """Whether it is all of the expression, so that it is shown."""
    words: int
    """How many words of a call's data it takes, as far as its text tells."""


class Split(NamedTuple):
    """Expressions in two parts."""

    pieces: tuple[Piece, ...]
    left: dict[Expression, Expression]
    """What of each is worked out at the return, of the same length."""

    @property
    def later(self) -> list[Expression]:
        """What is worked out at the return."""
        return list(self.left.values())


def split(expressions: Iterable[Expression], parameters: Collection[str], *, keeps: bool = True) -> Split:
    """Return what of expressions is worked out at the entry; ``keeps``: whether there is an entry that can."""
    pieces: list[Piece] = []
    left: dict[Expression, Expression] = {}
    for each in expressions:
        tree = ast.parse(f"({each.text}\n)", mode="eval").body
        found = list(_pieces(tree, parameters)) if keeps else []
        gone = {id(inner) for node in found for inner in ast.walk(node)}
        text = _without_marks(tree, _Text(each.text))
        for node in found:
            name = f"_{len(pieces)}"
            own = _names(each, tree, {id(inner) for inner in ast.walk(node)})
            piece = each._replace(text=_Text(each.text).alone(node), names=own)
            pieces.append(Piece(name, piece, node is tree, _words(node)))
            text.replace(node, name)
        others = {id(node) for node in ast.walk(tree)} - gone
        left[each] = each._replace(text=str(text), names=_names(each, tree, others))
    return Split(tuple(pieces), left)


def _names(expression: Expression, tree: ast.AST, wanted: Collection[int]) -> tuple[tuple[str, int, int], ...]:
    """Return the names that some nodes of an expression use; they are in the order of the tree."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return tuple(name for name, node in zip(expression.names, nodes, strict=True) if id(node) in wanted)


def _pieces(node: ast.AST, parameters: Collection[str]) -> Iterator[ast.expr]:
    """Yield the largest parts that read memory and need nothing but parameters."""
    if _is_at_return(node):
        return
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    known = names & set(parameters)
    if isinstance(node, ast.expr) and known and names - known <= _PURE and any(map(_reads, ast.walk(node))):
        yield node
        return
    for inner in ast.iter_child_nodes(node):
        yield from _pieces(inner, parameters)


def _reads(node: ast.AST) -> bool:
    """Return whether a node reads memory: a text, a member, an item."""
    match node:
        case ast.Call(ast.Name(name)):
            return name in READING
        case ast.Subscript(ast.Name("ptr")):
            return False
        case _:
            return isinstance(node, ast.Attribute | ast.Subscript)


def _is_at_return(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == AT_RETURN


def _without_marks(tree: ast.AST, text: "_Text") -> "_Text":
    """Return a text without the names of ``at_return``, whose brackets stay."""
    for node in ast.walk(tree):
        if _is_at_return(node):
            assert isinstance(node, ast.Call)
            text.replace(node.func, "")
    return text


def _words(node: ast.expr) -> int:
    """Return how many words a value takes: a text its bytes, of which there are a power of two, and one."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READING):
        return 1
    sizes = [each.value for each in node.args[1:] if isinstance(each, ast.Constant) and isinstance(each.value, int)]
    return 1 + max(8, 1 << (min(sizes or [_USUAL]) - 1).bit_length()) // 8


class _Text:
    """The text of an expression, of which parts are replaced in place."""

    def __init__(self, text: str) -> None:
        self._characters = list(text)
        self._lines = text.split("\n")

    def __str__(self) -> str:
        return "".join(self._characters)

    def replace(self, node: ast.expr, name: str) -> None:
        """Put a name where a part is, and blanks; line breaks stay."""
        start, end = self._range(node)
        padded = iter(name)
        for at in range(start, end):
            if self._characters[at] != "\n":
                self._characters[at] = next(padded, " ")

    def alone(self, node: ast.expr) -> str:
        """Return the text with blanks in place of all but a part."""
        start, end = self._range(node)
        return "".join(each if start <= at < end or each == "\n" else " " for at, each in enumerate(self._characters))

    def _range(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        """Return where in the text a place of the tree is: it was read in brackets, and columns are bytes."""
        before = sum(len(each) + 1 for each in self._lines[: line - 1])
        column -= line == 1
        return before + len(self._lines[line - 1].encode()[:column].decode(errors="replace"))


def words_of(pieces: Sequence[Piece]) -> int:
    """Return how many words of a call's data some pieces take."""
    return sum(piece.words for piece in pieces)
