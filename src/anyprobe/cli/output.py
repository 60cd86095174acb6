"""Where results, progress and warnings go, and how they look there."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from anyprobe.cli import streams

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
    from rich.console import Console

    return Console(file=stream, highlight=False, force_terminal=True, emoji=False)  # libc:fire:entry is no emoji


def write_json(document: Any, stream: TextIO, *, one_line: bool = False) -> None:  # noqa: ANN401 - any document
    """Write one document, on one line where several follow each other."""
    import json

    json.dump(document, stream, indent=None if one_line else 1)
    stream.write("\n")
    stream.flush()


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
