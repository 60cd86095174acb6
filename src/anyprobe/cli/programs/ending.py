"""What becomes of a started command when the session ends, of a program that executes another one, and of a tree."""

import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from anyprobe.cli.terminal import output
from anyprobe.core.errors import UsageError

if TYPE_CHECKING:
    from anyprobe.cli.programs.started import Unprobed
    from anyprobe.probes.following.followed import Followed
    from anyprobe.probes.session import Session

    Started = Session | Unprobed

KILL, LEAVE = "kill", "leave"
GRACE = 5.0
"""Seconds that a command has from SIGTERM to SIGKILL."""
REAP_WAIT = 1.0
"""Seconds to wait for the status of a command that has ended: its descriptor tells a moment before it can be reaped."""
REMAINING_LOOKS = 0.2
"""Seconds between two looks at which processes of a followed tree are there, once its first ones have ended."""
_FLAGS = frozenset({"--kill", "--leave", "--exit-status", "--follow", "--no-follow"})
"""Options about a started command alone."""
_TARGETS = frozenset({"-p", "--pid", "-n", "--name"})
ARGUMENTS = "anyprobe.arguments"
"""Where click's context has the arguments as they were given, without a command after ``--``."""


@contextmanager
def mistakes_end(started: "Started | None", at_end: str | None) -> Iterator[None]:
    """End a started command where the command line was wrong: it is not wanted unprobed."""
    try:
        yield
    except UsageError:
        if started is not None:
            with suppress(ProcessLookupError):
                os.kill(started.pid, signal.SIGKILL)
            started.wait(REAP_WAIT)
        raise
    except Exception:
        if started is not None and ended_status(started) is None:
            settle(started, at_end or LEAVE, quiet=False)
        raise


def settle(session: "Started", how: str, *, quiet: bool) -> int | None:
    """Tell a command that still runs to end, or leave it, and say which; return its exit status if it has ended."""
    status = ended_status(session)
    if status is not None:
        return status
    if how == LEAVE:
        said = f"process {session.pid} runs on, without probes (--kill ends it)"
    elif _told(session, signal.SIGTERM, GRACE):
        said = f"process {session.pid} was told to end (SIGTERM), and has ended (--leave lets it run on)"
    elif _told(session, signal.SIGKILL, REAP_WAIT):
        said = f"process {session.pid} was told to end (SIGTERM), did not within {GRACE:g} s, and was killed (SIGKILL)"
    else:
        said = f"process {session.pid} was killed (SIGKILL), and the kernel has not ended it yet"
    if not quiet:
        output.warn(said)
    return ended_status(session)


def _told(session: "Started", number: signal.Signals, seconds: float) -> bool:
    """Send a signal to a child, which cannot have been reaped; return whether it has ended then."""
    with suppress(ProcessLookupError):
        os.kill(session.pid, number)
    session.wait(seconds)
    return session.exited


def ended_status(session: "Started") -> int | None:
    """Return the exit status of a started command as a shell would see it, None while it runs."""
    target = session.target_info
    if target.exited is None and target.alive:
        return None
    session.wait(REAP_WAIT)
    return session.target_info.shell_status


class Replacements:
    """Notices programs that execute another one: the probes go with the former, and the session with them."""

    def __init__(
        self, sessions: "Sequence[Session]", tell: Callable[[str], None], *, started: bool,
        followed: "Callable[[Session], bool] | None" = None,
    ) -> None:  # fmt: skip
        """Watch the processes of sessions; a command that was ``started`` is waited for whatever it runs.

        ``followed`` says of a session whether there is one on what its process has become.
        """
        self._followed = followed
        self._watched = list(sessions)
        self._started, self._tell = started, tell
        context = click.get_current_context(silent=True)
        self._arguments: Sequence[str] = () if context is None else context.meta.get(ARGUMENTS, ())

    def look(self, ends: dict[int, int]) -> None:
        """Say which have become another program since the last look, and wait for the end of these no longer."""
        for session in [each for each in self._watched if self._is_another(each)]:
            self._watched.remove(session)
            if not self._started and (self._followed is None or not self._followed(session)):
                for descriptor in [each for each, pid in ends.items() if pid == session.pid]:
                    del ends[descriptor]

    def _is_another(self, session: "Session") -> bool:
        became = session.host.became()
        if became is None:
            return False
        import shutil

        if self._followed is not None and self._followed(session):
            return True
        if not session.exited:
            follow = shlex.join(["anyprobe", *elsewhere(self._arguments, session.pid)])
            said = f"process {session.pid} became {became}, without probes: follow with: {follow}"
        elif shutil.which(became):
            said = f"the command became {became} before it ended, without probes: start {became} itself"
        else:  # it has only given itself a name
            return True
        session.host.warn(said)
        self._tell(said)
        return True


def elsewhere(arguments: Sequence[str], pid: int) -> Iterator[str]:
    """Yield the arguments of a command line without those that choose the target, but for this one."""
    choosing = False
    for each in arguments:
        name, given, _ = each.partition("=")
        if choosing or (name in _TARGETS and given):
            choosing = False
        elif name in _TARGETS:
            choosing = True
        elif name not in _FLAGS and (name.startswith("--") or name[:2] not in {"-p", "-n"}):
            yield each
    yield from ("-p", str(pid))


class Remaining:
    """Whether processes of a followed tree are there, its first ones or others; looked for five times a second."""

    def __init__(self, tree: "Followed | None") -> None:
        """Look at a tree; without one nothing is there."""
        self._tree, self._next, self._found = tree, 0.0, False

    def __bool__(self) -> bool:
        """Return whether there are any, as of the last look."""
        if self._tree is not None and time.monotonic() >= self._next:
            self._found = bool(self._tree.remaining())
            self._next = time.monotonic() + REMAINING_LOOKS
        return self._found
