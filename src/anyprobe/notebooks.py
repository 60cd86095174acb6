"""Magics of IPython and Jupyter: ``%load_ext anyprobe``, then ``%%probe libz:*`` above a cell, or ``%anyprobe libz:*``.

They probe the Python program that runs the notebook. IPython itself is imported nowhere here.
"""

import shlex
import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

from anyprobe.core.errors import AnyprobeError, UsageError
from anyprobe.core.printable import printable

if TYPE_CHECKING:
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.selfattach.session import SelfSession

P = ParamSpec("P")
COUNT = "--count"
"""Before specs: hits of places are counted, and functions not timed."""


class Shell(Protocol):
    """What is needed of IPython's shell."""

    def register_magic_function(self, function: Any, magic_kind: str, magic_name: str) -> None:  # noqa: ANN401
        """Make a magic known."""
        ...

    def run_cell(self, cell: str) -> Any:  # noqa: ANN401
        """Run the text of a cell; what it raises is shown."""
        ...


class Magics:
    """The two magics, and the session that ``%anyprobe`` keeps from cell to cell."""

    def __init__(self, shell: Shell) -> None:
        """Have no session yet."""
        self._shell = shell
        self._session: SelfSession | None = None

    def probe(self, line: str, cell: str) -> "Snapshot":
        """Run a cell with probes, and return what was counted: ``%%probe [--count] SPEC...``."""
        if self._session is not None:
            raise UsageError("%anyprobe has a session open, which counts already: %anyprobe off ends it")
        with _opened(line, "%%probe") as session:
            self._shell.run_cell(cell)
            found, _ = session.snapshot().nonzero()
        return found

    def anyprobe(self, line: str) -> "Snapshot | None":
        """Open a session (``[--count] SPEC...``), show what it has counted (nothing given), or end it (``off``)."""
        session = self._session
        if not line.strip():
            if session is None:
                raise UsageError("nothing is probed: %anyprobe SPEC... begins")
            return session.snapshot().nonzero()[0]
        self._session = None
        found = None
        if session is not None:
            found = session.snapshot().nonzero()[0]
            session.close()
        if line.strip() == "off":
            return found
        self._session = _opened(line, "%anyprobe")
        return None


def _opened(line: str, what: str) -> "SelfSession":
    """Return a session on this program with probes at what the line names."""
    from anyprobe.probes.selfattach.session import attach_self

    specs = shlex.split(line)
    counts = COUNT in specs
    specs = [each for each in specs if each != COUNT]
    if not specs:
        raise UsageError(f"{what} [{COUNT}] SPEC...: name functions, as {what} libz:deflate")
    session = attach_self()
    try:
        (session.count if counts else session.time)(*specs, follow=True)
    except BaseException:
        session.close()
        raise
    return session


def load(shell: Shell) -> None:
    """Make the magics known to a shell."""
    magics = Magics(shell)
    shell.register_magic_function(_in_a_line(magics.probe), "cell", "probe")
    shell.register_magic_function(_in_a_line(magics.anyprobe), "line", "anyprobe")


def _in_a_line(magic: "Callable[P, Snapshot | None]") -> "Callable[P, Snapshot | None]":
    """Return a magic that says what was wrong in a line, as the command line does, and not where in anyprobe."""

    @wraps(magic)
    def said(*arguments: P.args, **named: P.kwargs) -> "Snapshot | None":
        try:
            return magic(*arguments, **named)
        except AnyprobeError as error:
            sys.stderr.write(f"anyprobe: {printable(str(error), chr(10))}\n")
            return None

    return said
