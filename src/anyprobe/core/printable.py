r"""Texts of programs as they may reach a terminal: what would move its cursor, or reorder a line, is shown as ``\x1b``.

Names of threads, files and symbols, and whatever is read from memory are the program's: any bytes. All reports and
messages have them through here. So do results, which Python shows in one line.
"""

import importlib
from typing import Any

_LETTERS = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def printable(text: str, kept: str = "") -> str:
    """Return a text with escapes for control and format characters (those that write from right to left, too).

    ``kept``: characters that stay, such as the line breaks of a message of several lines.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in kept else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return _LETTERS.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


class Brief:
    """What Python shows in one line however much there is, and a notebook as tables.

    The module ``shown`` beside that of the class does it, which is imported when it is asked to.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        """Return one line."""
        return f"<{printable(_shown().line_of(self))}>"

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        text: str = _shown().page_of(self)
        return text


class Tables(Brief):
    """What has tables, each of which pandas, polars and Arrow can have."""

    __slots__ = ()

    def rows(self, of: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of a table; None is what is missing.

        Args:
            of: ``functions``, ``sites``, ``buckets``, ``refused``, ``processes``, ``threads``, or the name of an
                aggregation. None: the first of functions, sites and aggregations that has rows.

        Raises:
            UsageError: there is no such table.
        """
        found: list[dict[str, Any]] = _shown().rows_of(self, of)
        return found

    def columns(self, of: str | None = None) -> dict[str, list[Any]]:
        """Return the columns of a table, all of the same length.

        Args:
            of: the table, see ``rows``.
        """
        rows = self.rows(of)
        return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}

    def to_pandas(self, of: str | None = None) -> Any:  # noqa: ANN401 - the library is optional
        """Return a table as a ``pandas.DataFrame``.

        Args:
            of: the table, see ``rows``.

        Raises:
            UsageError: there is no such table, or no pandas.
        """
        return _shown().library("pandas").DataFrame(self.columns(of))

    def to_polars(self, of: str | None = None) -> Any:  # noqa: ANN401
        """Return a table as a ``polars.DataFrame``; raises as ``to_pandas`` does.

        Args:
            of: the table, see ``rows``.
        """
        return _shown().library("polars").DataFrame(self.columns(of), strict=False, infer_schema_length=None)

    def to_arrow(self, of: str | None = None) -> Any:  # noqa: ANN401
        """Return a table as a ``pyarrow.Table``; raises as ``to_pandas`` does.

        Args:
            of: the table, see ``rows``.
        """
        return _shown().library("pyarrow", "arrow").table(self.columns(of))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the first table that has rows by Arrow's PyCapsule protocol, which DuckDB and others read."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)


def _shown() -> Any:  # noqa: ANN401 - a module
    return importlib.import_module("anyprobe.data.snapshots.shown")
