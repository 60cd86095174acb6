"""Which processes a command line means, or the kernel, and sessions on them."""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from anyprobe.core.errors import NoSuchProcess, TargetExited

if TYPE_CHECKING:
    from anyprobe.probes.following.selection import Selection
    from anyprobe.probes.providers.kernel.places.specs import KernelSpec
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.probes.session import Session
    from anyprobe.probes.specs.parts import Spec

    Measured = Session | KernelSession
    AnySpec = Spec | KernelSpec

PID_IN_SPEC = re.compile(r"pid(\d+):")
SOURCE_LINE = re.compile(r"[\w./-]+\.[chS]:\d+")
KERNEL = 0
"""The pid of sessions on the kernel."""


class Target(NamedTuple):
    """Running processes, or a command to start; never both. With either or alone, the kernel.

    Of the kernel, hits in running processes are meant if there are any, else all.
    """

    pids: tuple[int, ...] = ()
    program: tuple[str, ...] = ()
    named: frozenset[int] = frozenset()
    """Which of the processes were found by a name: it is no error if one of them ends."""
    kernel: bool = False
    """Whether there are probes in the kernel."""
    in_kernel: frozenset[str] = frozenset()
    """The specs of these."""
    selection: "Selection | None" = None
    """What processes that appear later have to be; None where these are not wanted."""
    probed: bool = True
    """Whether there are others: if not, a command that is started only does what the kernel's probes see."""
    of_chosen: bool | None = None
    """Whether hits in the kernel are those of these processes alone; None: they are, but for those of a command without
    probes of its own."""

    @property
    def new(self) -> bool:
        """Whether processes that appear later are wanted."""
        return self.selection is not None

    @property
    def everywhere(self) -> list[str]:
        """The specs of places in programs' files whose hits count in all processes, as no process is named."""
        from anyprobe.probes.providers.kernel.places.specs import is_in_any_process

        return [] if self.pids or self.program else sorted(filter(is_in_any_process, self.in_kernel))

    def read(self, specs: Sequence[str]) -> "tuple[AnySpec, ...]":
        """Return the values of specs, each by the grammar of what it is meant for."""
        return tuple(each for spec in specs for each in read((spec,), in_kernel=spec in self.in_kernel))

    @property
    def owns_standard_output(self) -> bool:
        """Whether standard output belongs to the started command."""
        return bool(self.program)


def selected(settings: dict[str, Any]) -> dict[str, Any]:
    """Take what selects processes besides their names out of a command's options, and return it."""
    return {name: settings.pop(name) for name in ("new", "cgroup", "container")}


def choose(
    pids: Sequence[int], names: Sequence[str], program: Sequence[str] = (), specs: Sequence[str] = (), *,
    new: bool = False, cgroup: str | None = None, container: str | None = None,
) -> Target:  # fmt: skip
    """Return the target of a command line; complain when it names none or two kinds."""
    selection = None
    if new or cgroup or container:
        selection = _selection(names, cgroup, container, new=new, program=program)
        named = frozenset(selection.running()) - set(pids)
        if not named and not new:
            raise NoSuchProcess(f"no process is {selection}")
        running = [*pids, *sorted(named)]
    else:
        running, named = _running(pids, names)
    if not running and not program and not new:
        running = [int(found[1]) for spec in specs if (found := PID_IN_SPEC.match(spec))]
    in_kernel = frozenset(spec for spec in specs if is_in_kernel(spec, chosen=bool(running or program or new)))
    probed = not specs or len(in_kernel) < len(set(specs))
    _see_one_kind(running, program)
    if new and not probed:
        raise click.UsageError("--new is about probes in processes, and all of these are in the kernel")
    if not running and not program and probed and not new:
        message = "choose a target: -p PID, -n NAME, or a command after --"
        line = next((each for each in specs if SOURCE_LINE.fullmatch(each)), "")
        raise click.UsageError(f"{message}; or, for a line of the kernel, kernel::{line}" if line else message)
    for spec in specs:
        if spec not in in_kernel and meant_elsewhere(spec, running):
            raise click.UsageError(f"{spec!r} names a process that is not among the targets")
    later = selection if new else None
    return Target(tuple(dict.fromkeys(running)), tuple(program), named, bool(in_kernel), in_kernel, later, probed)


def _selection(
    names: Sequence[str], cgroup: str | None, container: str | None, *, new: bool, program: Sequence[str]
) -> "Selection":
    from anyprobe.probes.following.selection import Selection

    found = Selection(tuple(names), cgroup or "", container or "")
    if not found:
        raise click.UsageError("--new is about processes that -n, --cgroup or --container name")
    if program:
        raise click.UsageError(
            f"{'--new' if new else '--cgroup and --container'}: about running processes, not a command"
        )
    return found


def _running(pids: Sequence[int], names: Sequence[str]) -> tuple[list[int], frozenset[int]]:
    """Return the processes that are named by number and by name, and which of them only by name."""
    named = frozenset(pid for name in names for pid in pids_by_name(name)) - set(pids)
    return [*pids, *sorted(named)], named


def _see_one_kind(running: Sequence[int], program: Sequence[str]) -> None:
    if running and program:
        raise click.UsageError("choose either running processes (-p, -n) or a command after --, not both")


def is_in_kernel(spec: str, *, chosen: bool) -> bool:
    """Return whether a spec means something in the kernel; ``chosen``: whether the command line names a process, too.

    Then a short name like bpftrace's ``k:`` is a module, and places in files are in that process.
    """
    from anyprobe.probes.providers.kernel.places.specs import is_in_any_process, is_kernel

    return is_kernel(spec, short=not chosen) or (not chosen and is_in_any_process(spec))


def meant_for(target: Target, pid: int, specs: "Sequence[AnySpec]") -> "list[AnySpec]":
    """Return which specs are meant for a process, or for the kernel (``KERNEL``)."""
    if pid == KERNEL:
        return [each for each in specs if each.text in target.in_kernel]
    of_processes = [process_spec(each) for each in specs if each.text not in target.in_kernel]
    return [each for each in of_processes if each.pid in {None, pid}]


def kernel_spec(spec: "AnySpec") -> "KernelSpec":
    """Return a spec that is known to be for a session on the kernel."""
    return cast("KernelSpec", spec)


def process_spec(spec: "AnySpec") -> "Spec":
    """Return a spec that is known to be for a session on a process."""
    return cast("Spec", spec)


def read(specs: Sequence[str], *, in_kernel: bool) -> "Sequence[AnySpec]":
    """Return the values of specs, by the grammar of what a session is on: below here nothing reads a text."""
    if in_kernel:
        from anyprobe.probes.providers.kernel.places import specs as kernel_specs

        return kernel_specs.parsed(specs)
    from anyprobe.probes.specs.spec import parsed

    return parsed(specs)


def meant_elsewhere(spec: str, pids: Sequence[int]) -> bool:
    """Return whether a spec names a process (``pid1234:...``), and none of these."""
    found = PID_IN_SPEC.match(spec)
    return found is not None and int(found[1]) not in pids


def choose_running(pids: Sequence[int], names: Sequence[str], specs: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the running processes that a command line names."""
    if not pids and not names and not any(map(PID_IN_SPEC.match, specs)):
        raise click.UsageError("choose a target: -p PID or -n NAME")
    return choose(pids, names, (), specs).pids


def choose_session(
    pids: Sequence[int], names: Sequence[str], program: Sequence[str], *, in_kernel: bool,
    **selected: Any,  # noqa: ANN401 - as ``choose`` takes it
) -> Target:  # fmt: skip
    """Return the target of a script, which has one kind of session."""
    if not in_kernel:
        return choose(pids, names, program, **selected)
    if any(selected.values()):
        raise click.UsageError("--new, --cgroup and --container are about probes in processes, not with --kernel")
    running, named = _running(pids, names)
    _see_one_kind(running, program)
    return Target(tuple(dict.fromkeys(running)), tuple(program), named, kernel=True, probed=False)


def program_among(specs: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Return the specs among some arguments, and the path of a program that is among them, if there is one."""
    files = [each for each in specs if "/" in each and os.path.isfile(each)]
    if len(files) > 1:
        raise click.UsageError(f"one program, please; these are {' and '.join(files)}")
    return tuple(each for each in specs if each not in files), files[0] if files else None


def choose_listed(
    pids: Sequence[int], names: Sequence[str], specs: Sequence[str], program: str | None = None
) -> Target:
    """Return the one process, the program that is not to run, or the kernel, which is looked at by specs."""
    given = bool(pids or names or program or any(map(PID_IN_SPEC.match, specs)))
    if program is not None:
        if pids or names:
            raise click.UsageError(f"choose either a running process (-p, -n) or the program {program}, not both")
        if not os.access(program, os.X_OK):
            raise click.UsageError(f"{program} is no program; of a library, name a process that has loaded it: -p PID")
        return Target(program=(program,))
    in_kernel = frozenset(spec for spec in specs if is_in_kernel(spec, chosen=given))
    if not in_kernel:
        return Target((choose_one(pids, names, specs),))
    if given or len(in_kernel) < len(set(specs)):
        raise click.UsageError(f"{min(in_kernel)!r} is in the kernel: by itself, please, without -p and -n")
    return Target(kernel=True, in_kernel=in_kernel, probed=False)


def choose_one(pids: Sequence[int], names: Sequence[str], specs: Sequence[str] = ()) -> int:
    """Return the one running process that a command line names."""
    running = choose_running(pids, names, specs)
    if len(running) > 1:
        raise click.UsageError(f"one process, please; this names {', '.join(map(str, running))}")
    return running[0]


def pids_by_name(name: str) -> list[int]:
    """Return the processes of this name: of the task, of the executable, or of the command as it was called."""
    from anyprobe.probes.following.selection import Selection

    found = Selection((name,)).running()
    if not found:
        raise NoSuchProcess(f"no process is named {name!r}; ps -e lists the names, and --new waits for one")
    return found


def check_pending(target: Target, pending: bool | None) -> None:
    """Complain where handlers in the kernel are asked to wait for modules: they stay where they are."""
    if pending and target.kernel:
        raise click.UsageError("--pending is for counts in the kernel: its handlers are placed in what is loaded")


def open_kernel(
    stack: ExitStack, target: Target, mechanism: str | None = None, *, include_self: bool = True
) -> "KernelSession":
    """Open a session on the kernel, for hits in the target's running processes if there are any, else in all others.

    ``include_self``: in this one, too. Leaving the stack removes its probes.
    """
    from anyprobe.probes.following.selection import names_of
    from anyprobe.probes.providers.kernel.session import kernel

    wanted = () if target.of_chosen is False else target.pids
    pids = [pid for pid in wanted if pid not in target.named or names_of(pid)]
    if wanted and not pids:
        raise NoSuchProcess("the processes of this name have ended meanwhile")
    return stack.enter_context(kernel(mechanism, pids=pids, include_self=include_self))


def on_process(session: "Measured", what: str = "this") -> "Session":
    """Return a session that is on a process; complain that ``what`` cannot be had of the kernel."""
    if session.pid == KERNEL:
        raise click.UsageError(f"{what} cannot be had of the kernel; leave its specs away")
    return cast("Session", session)


def in_the_kernel(session: "Measured") -> "KernelSession":
    """Return a session that is known to be on the kernel."""
    assert session.pid == KERNEL
    return cast("KernelSession", session)


def dropped(session: "Measured") -> "Mapping[str, Mapping[str, int]]":
    """Return what maps and records of handlers have lost, by name and cause."""
    return session.snapshot().dropped if session.pid == KERNEL else on_process(session).handling.dropped()


def count(session: "Measured", specs: "Sequence[AnySpec]", *, pending: bool | None) -> None:
    """Count hits in a session; ``pending``: in the kernel also in modules that are loaded later."""
    if session.pid == KERNEL and pending:
        in_the_kernel(session).count(*map(kernel_spec, specs), follow=True)
    elif session.pid == KERNEL:
        in_the_kernel(session).count(*map(kernel_spec, specs))
    else:
        cast("Session", session).count(*map(process_spec, specs))


def open_sessions(
    stack: ExitStack, target: Target, silent: bool = False, /, **settings: Any,  # noqa: ANN401 - passed on
) -> "list[Session]":  # fmt: skip
    """Attach to every process, or start the command; leaving the stack detaches.

    ``silent``: the command reads nothing, and what it writes is thrown away.

    Of several processes that were found by their name, those that have ended meanwhile are left out, with a warning.
    """
    from anyprobe.binary.images.modules import images_shared
    from anyprobe.cli.terminal.output import warn
    from anyprobe.probes import opening

    settings = {name: value for name, value in settings.items() if value is not None}
    if target.program:
        if silent:
            settings |= dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
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


def refuse_end(target: Target, at_end: str | None) -> None:
    """Refuse what says what becomes of a command at the end, where there is none."""
    if at_end and not target.program:
        raise click.UsageError(f"--{at_end} is about a command after --")


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
