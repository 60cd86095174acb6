"""Where results, progress and warnings go, and how they look there."""

import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from anyprobe.cli import streams
from anyprobe.core.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED_WIDTH = 200
"""Columns where no terminal limits them: names are not cut, and lines stay readable in a file."""

PROGRESS_AFTER = 0.3
"""Seconds before a progress bar is worth drawing."""


@contextmanager
def results(path: str | None, *, program_owns_output: bool) -> Iterator[TextIO]:
    """Give the stream for results: the file, or standard output, or standard error when a command owns the output."""
    if path is None:
        standard = sys.stderr if program_owns_output else sys.stdout
        streams.check_open(standard)
        yield standard
        return
    try:
        stream = streams.open_output(path)
    except OSError as error:
        raise click.FileError(path, error.strerror) from error
    with stream:
        yield stream


def console(stream: TextIO) -> "Console":
    """Return a console that draws colours on terminals only and respects NO_COLOR, and COLUMNS in a file, too."""
    if not stream.isatty():
        from anyprobe.reports.plain import PlainConsole

        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() and int(columns) else UNLIMITED_WIDTH
        return cast("Console", PlainConsole(stream, width))
    from anyprobe.reports.terminal import Terminal

    return Terminal(file=stream, highlight=False, force_terminal=True, emoji=False)  # libc:fire:entry is no emoji


def write_json(document: Any, stream: TextIO, *, one_line: bool = False) -> None:  # noqa: ANN401 - any document
    """Write one document, on one line where several follow each other."""
    stream.write(json_text(document, one_line=one_line) + "\n")
    stream.flush()


def json_text(document: Any, *, one_line: bool = True) -> str:  # noqa: ANN401 - any document
    r"""Return a document as JSON (RFC 8259), which lacks what some values are.

    No number and infinities are the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; ``null`` is what is missing.
    Bytes of names that are no UTF-8 are ``\xNN``, as they are in texts that were read from memory.
    """
    import json

    indent = None if one_line else 1
    try:
        text = json.dumps(document, indent=indent, allow_nan=False)
    except ValueError:  # what takes time is done where it is needed
        text = None
    if text is None or "\\udc" in text:
        return json.dumps(_in_json(document), indent=indent, allow_nan=False)
    return text


def _in_json(value: Any) -> Any:  # noqa: ANN401 - any document
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case str():
            return value.encode(errors="surrogateescape").decode(errors="backslashreplace")
        case dict():
            return {_in_json(name): _in_json(each) for name, each in value.items()}
        case list() | tuple():
            return [_in_json(each) for each in value]
        case _:
            return value


def say(line: str, *, error: bool = False) -> None:
    """Print a line of text that may hold names of programs."""
    click.echo(printable(line, "\n"), err=error)


def warn(message: str) -> None:
    """Tell the user something that does not end the command."""
    streams.tell(f"anyprobe: {message}")


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[None]:
    """Show a bar on a terminal while something takes long; nothing elsewhere, and nothing when it is quick."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    drawer = threading.Thread(target=_draw, args=(what, ended), daemon=True)
    drawer.start()
    try:
        yield
    finally:
        ended.set()
        drawer.join()


def _draw(what: str, ended: threading.Event) -> None:
    if ended.wait(PROGRESS_AFTER):
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        bar.add_task(what, total=None)
        ended.wait()
