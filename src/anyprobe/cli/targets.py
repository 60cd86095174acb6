"""Which processes a command line means, and sessions on them."""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyprobe.core.errors import NoSuchProcess, TargetExited
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.probes.session import Session

PID_IN_SPEC = re.compile(r"pid(\d+):")


@dataclass(frozen=True, slots=True)
class Target:
    """Running processes, or a command to start; never both."""

    pids: tuple[int, ...] = ()
    program: tuple[str, ...] = ()
    named: frozenset[int] = frozenset()
    """Which of the processes were found by a name: it is no error if one of them ends."""

    @property
    def owns_standard_output(self) -> bool:
        """Whether standard output belongs to the started command."""
        return bool(self.program)


def choose(pids: Sequence[int], names: Sequence[str], program: Sequence[str] = (), specs: Sequence[str] = ()) -> Target:
    """Return the target of a command line; complain when it names none or two kinds."""
    named = frozenset(pid for name in names for pid in pids_by_name(name)) - set(pids)
    running = [*pids, *sorted(named)]
    if not running and not program:
        running = [int(found[1]) for spec in specs if (found := PID_IN_SPEC.match(spec))]
    if running and program:
        raise click.UsageError("choose either running processes (-p, -n) or a command after --, not both")
    if not running and not program:
        raise click.UsageError("choose a target: -p PID, -n NAME, or a command after --")
    for spec in specs:
        if meant_elsewhere(spec, running):
            raise click.UsageError(f"{spec!r} names a process that is not among the targets")
    return Target(tuple(dict.fromkeys(running)), tuple(program), named)


def meant_elsewhere(spec: str, pids: Sequence[int]) -> bool:
    """Return whether a spec names a process (``pid1234:...``), and none of these."""
    found = PID_IN_SPEC.match(spec)
    return found is not None and int(found[1]) not in pids


def choose_running(pids: Sequence[int], names: Sequence[str], specs: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the running processes that a command line names."""
    if not pids and not names and not any(map(PID_IN_SPEC.match, specs)):
        raise click.UsageError("choose a target: -p PID or -n NAME")
    return choose(pids, names, (), specs).pids


def choose_one(pids: Sequence[int], names: Sequence[str], specs: Sequence[str] = ()) -> int:
    """Return the one running process that a command line names."""
    running = choose_running(pids, names, specs)
    if len(running) > 1:
        raise click.UsageError(f"one process, please; this names {', '.join(map(str, running))}")
    return running[0]


def pids_by_name(name: str) -> list[int]:
    """Return the processes of this name: of the task, of the executable, or of the command as it was called."""
    found = [
        pid
        for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        if pid != os.getpid() and name in names_of(pid)
    ]
    if not found:
        raise NoSuchProcess(f"no process is named {name!r}; ps -e lists the names")
    return found


def names_of(pid: int) -> set[str]:
    """Return the names that a process goes by; none if it is gone."""
    process = Path("/proc", str(procfs.voice(pid)))
    names = set()
    try:
        names.add((process / "comm").read_text(errors="replace").strip())
        arguments = (process / "cmdline").read_bytes().split(b"\0")
        names.add(os.path.basename(os.fsdecode(arguments[0])))
        names.add(os.path.basename(os.readlink(process / "exe")))
    except OSError:
        pass  # gone meanwhile, or a stranger's executable that we may not look at
    return names - {""}


def open_sessions(stack: ExitStack, target: Target, **settings: Any) -> "list[Session]":  # noqa: ANN401 - passed on
    """Attach to every process, or start the command; leaving the stack detaches.

    Of several processes that were found by their name, those that have ended meanwhile are left out, with a warning.
    """
    from anyprobe.binary.images.modules import images_shared
    from anyprobe.cli.output import warn
    from anyprobe.probes import opening

    settings = {name: value for name, value in settings.items() if value is not None}
    if target.program:
        return [stack.enter_context(opening.run(target.program, process_group=0, **settings))]
    stack.enter_context(images_shared())
    sessions = []
    for number, pid in enumerate(target.pids):
        try:
            sessions.append(stack.enter_context(opening.attach(pid, **settings)))
        except (NoSuchProcess, TargetExited):
            last = number + 1 == len(target.pids) and not sessions
            if pid not in target.named or last:
                raise
            warn(f"process {pid} has ended before it could be attached to: it is left out")
    return sessions


def end_descriptors(stack: ExitStack, pids: Iterable[int]) -> dict[int, int]:
    """Return a descriptor per process that becomes readable at its end; none for those that are gone already."""
    descriptors = {}
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        stack.callback(os.close, descriptor)
        descriptors[descriptor] = pid
    return descriptors
