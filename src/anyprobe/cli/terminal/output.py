"""Where results, progress and warnings go, and how they look there."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

import click

from anyprobe.cli.terminal import streams
from anyprobe.core.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED_WIDTH = 200
"""Columns where no terminal limits them: names are not cut, and lines stay readable in a file."""

PROGRESS_AFTER = 0.3
"""Seconds before a progress bar is worth drawing."""
PROGRESS_LOOKS = 0.1
"""Seconds between two changes of the bar."""
PROGRESS_LINES = 10.0
"""Seconds between two lines where there is no terminal, if the environment does not say."""


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
        stream.end()  # after a mistake, what was in the file before is still there


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
    """Write one document, or a dataclass as it is, on one line where several follow each other."""
    from anyprobe.exporters.json_document import json_text

    if is_dataclass(document) and not isinstance(document, type):
        document = asdict(document)
    stream.write(json_text(document, one_line=one_line) + "\n")
    stream.flush()


def say(line: str, *, error: bool = False) -> None:
    """Print a line of text that may hold names of programs."""
    click.echo(printable(line, "\n"), err=error)


def warn(message: str) -> None:
    """Tell the user something that does not end the command."""
    streams.tell(f"anyprobe: {message}")


class Progress:
    """Says while something lasts what is done, how much of it, and how long the rest will take.

    On a terminal that is a bar, once it lasts for a moment; elsewhere a line of standard error every ten seconds.
    """

    def __init__(self, what: str, *, quiet: bool) -> None:
        """``what`` is done within the ``with`` block; ``quiet``: nothing is said."""
        self._what = what
        self._is_quiet = quiet
        self._ended = threading.Event()
        self._teller: threading.Thread | None = None
        self._doing = ""
        self._done = self._total = 0
        self._began = 0.0

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Take note of what is being done to functions, to how many that has been done, and of how many."""
        if doing != self._doing or done < self._done:
            self._began, self._doing = time.monotonic(), doing
        self._done, self._total = done, total

    def __enter__(self) -> Self:
        """Begin."""
        if not self._is_quiet:
            tell = self._draw if sys.stderr.isatty() else self._write
            self._teller = threading.Thread(target=tell, daemon=True)
            self._teller.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End; what was drawn goes."""
        self._ended.set()
        if self._teller is not None:
            self._teller.join()

    def __str__(self) -> str:
        """Return what is being done, and how far it is."""
        if not self._total:
            return self._what
        done, total, taken = self._done, self._total, time.monotonic() - self._began
        text = f"{self._what}: {self._doing} {done:,} of {total:,} functions ({100 * done // total} %)"
        left = taken * (total - done) / done if done else 0.0
        return f"{text}, about {left:.0f} s left" if left >= 1 else text

    def _draw(self) -> None:
        if self._ended.wait(PROGRESS_AFTER):
            return
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Bar(*columns, console=console(sys.stderr), transient=True) as bar:
            task = bar.add_task(str(self), total=None)
            while not self._ended.wait(PROGRESS_LOOKS):
                bar.update(task, description=str(self), total=self._total or None, completed=self._done)

    def _write(self) -> None:
        given = os.environ.get("ANYPROBE_PROGRESS", "")
        seconds = int(given) if given.isdecimal() else PROGRESS_LINES
        while seconds and not self._ended.wait(seconds):
            streams.tell(f"anyprobe: {self}")


def progress(what: str, *, quiet: bool) -> Progress:
    """Return what tells the user how far something is, within a ``with`` block, if it takes long."""
    return Progress(what, quiet=quiet)
