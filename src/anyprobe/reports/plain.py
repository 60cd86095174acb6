"""Output without colours, as rich would write it to a file, without rich where little is to be printed.

To import rich takes longer than to arm a probe. What is more than plain lines, or a table that fits, is left to it.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from anyprobe.core.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_GAP = "  "


class Column(NamedTuple):
    """A column of a table: its heading, and what rich takes for its look."""

    heading: str
    look: dict[str, Any]


class Rows:
    """A table without lines, of which the cells are rich's markup."""

    def __init__(self) -> None:
        """Begin without columns and rows."""
        self._columns: list[Column] = []
        self._rows: list[Sequence[str]] = []

    def add_column(self, heading: str, **look: Any) -> None:  # noqa: ANN401 - rich's options
        """Add a column, by rich's options."""
        self._columns.append(Column(heading, look))

    def add_row(self, *cells: str) -> None:
        """Add a row with a cell for each column."""
        self._rows.append(cells)

    def __rich__(self) -> "Table":
        """Return the table as rich draws it."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in self._columns:
            table.add_column(column.heading, **column.look)
        for cells in self._rows:
            table.add_row(*cells)
        return table

    def plain(self, width: int) -> str | None:
        """Return the lines of the table, ``None`` where it has to be squeezed, or cells are more than plain text."""
        lines = [[column.heading for column in self._columns]]
        for cells in self._rows:
            plain = [cell for cell in cells if cell.isascii() and cell.isprintable()]
            texts = [text for cell in plain if (text := plain_text(cell)) is not None]
            if len(texts) != len(self._columns):
                return None
            lines.append(texts)
        widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
        if sum(widths) + len(_GAP) * (len(widths) - 1) > width:
            return None
        right = [column.look.get("justify") == "right" for column in self._columns]
        return "".join(
            _GAP.join(
                text.rjust(size) if at_right else text.ljust(size)
                for text, size, at_right in zip(texts, widths, right, strict=True)
            )
            + "\n"
            for texts in lines
        )


class PlainConsole:
    """What a console of rich is for a stream that is no terminal; everything but ``print`` is that console's own."""

    def __init__(self, stream: TextIO, width: int) -> None:
        """Print to a stream, in so many columns."""
        self._stream, self._width = stream, width

    @cached_property
    def _rich(self) -> "Console":
        from anyprobe.reports.terminal import Terminal

        return Terminal(file=self._stream, width=self._width, highlight=False, force_terminal=False, emoji=False)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a console has
        """Return what rich's console has."""
        return getattr(self._rich, name)

    def print(self, *objects: Any, **how: Any) -> None:  # noqa: ANN401 - as rich's
        """Print as rich's console does."""
        text = self._plain(objects, how)
        if text is None:
            self._rich.print(*objects, **how)
            return
        self._stream.write(text)
        self._stream.flush()

    def _plain(self, objects: Sequence[Any], how: dict[str, Any]) -> str | None:
        """Return what is to be written if that needs no rich."""
        if not objects and not how:
            return "\n"
        if len(objects) != 1 or not how.keys() <= {"style", "soft_wrap"}:
            return None
        (what,) = objects
        if isinstance(what, Rows) and not how:
            return what.plain(self._width)
        text = plain_text(what) if isinstance(what, str) and how.get("soft_wrap") else None
        return None if text is None else text + "\n"


def plain_text(markup: str) -> str | None:
    """Return what a text looks like without colours, ``None`` where only rich can say."""
    text = markup.replace("[bold]", "").replace("[/bold]", "")
    doubtful = "[" in text or "\\" in text or text.endswith(" ")
    return None if doubtful or not text.lstrip("\n").isprintable() else text


def escape(text: str) -> str:
    """Return the markup of a text that is to be shown as it is, but for characters that are not for terminals."""
    text = printable(text)
    if "[" not in text and "\\" not in text:
        return text
    from rich import markup

    return markup.escape(text)
