"""Records of handlers as lines of text."""

from collections.abc import Mapping
from typing import Any

from anyprobe.core.printable import printable

TIME = "ts"


def line(name: str, form: str, row: Mapping[str, Any]) -> str:
    """Return one record as a line: as its ``printf`` says, or its name and fields."""
    values = {field: printable(value) if isinstance(value, str) else value for field, value in row.items()}
    if form:
        return form.format(**values).removesuffix("\n")
    return " ".join((printable(name), *(f"{field}={value}" for field, value in values.items() if field != TIME)))
