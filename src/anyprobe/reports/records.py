"""Records of handlers as lines of text."""

from collections.abc import Mapping
from typing import Any

TIME = "ts"
_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))} | {
    ord("\n"): "\\n",
    ord("\t"): "\\t",
    ord("\r"): "\\r",
}
"""Characters that would move a terminal's cursor, or worse, and come from a program's memory."""


def line(name: str, form: str, row: Mapping[str, Any]) -> str:
    """Return one record as a line: as its ``printf`` says, or its name and fields."""
    values = {field: printable(value) for field, value in row.items()}
    if form:
        return form.format(**values).removesuffix("\n")
    return " ".join((name, *(f"{field}={value}" for field, value in values.items() if field != TIME)))


def printable(value: object) -> object:
    """Return a value with characters that are not for terminals made visible."""
    return value.translate(_ESCAPED) if isinstance(value, str) else value
