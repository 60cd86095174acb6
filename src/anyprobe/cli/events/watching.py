"""The life of ``watch``: watch, print what comes, end."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

import click

from anyprobe.cli import ExitStatus
from anyprobe.cli.programs import targets
from anyprobe.cli.programs.looking import looked_at
from anyprobe.cli.terminal import output
from anyprobe.cli.terminal.interrupts import Interrupts
from anyprobe.core.printable import printable
from anyprobe.probes.watching.watcher import Access, Watcher
from anyprobe.reports.quantities import counted

if TYPE_CHECKING:
    from anyprobe.probes.watching.store_watcher import StoreWatcher

_LOOKS = 0.02
"""Seconds between two looks for what has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The command line, read."""

    texts: tuple[str, ...]
    reads: bool
    stores: bool
    heap: bool
    modules: tuple[str, ...]
    most: int | None
    stack_bytes: int
    seconds: float | None
    format: str | None
    output: str | None
    quiet: bool
    at_end: str | None
    exit_status: bool


class _Printer:
    """Prints accesses as lines."""

    def __init__(self, watcher: "Watcher | StoreWatcher", plan: Plan, stream: TextIO) -> None:
        self._watcher, self._plan, self._stream = watcher, plan, stream
        self._began = time.monotonic_ns()
        self.shown = 0

    @property
    def enough(self) -> bool:
        """Whether as many were shown as are wanted."""
        return self._plan.most is not None and self.shown >= self._plan.most

    def look(self, *, final: bool = False) -> None:
        """Print what has come since the last look."""
        lines = []
        for access in self._watcher.look(final=final):
            if self.enough:
                break
            self.shown += 1
            lines.append(self._json(access) if self._plan.format == "json" else self._line(access))
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()

    def _json(self, access: Access) -> str:
        from anyprobe.exporters.json_document import json_text

        document: dict[str, Any] = {
            "ts_ns": access.time,
            "pid": access.pid,
            "tid": access.tid,
            "watched": access.watched.text,
            "kind": access.kind,
            "pc": access.pc,
            "function": access.function,
            "module": access.module,
            "line": access.line or None,
            "address": access.address,
            "size": access.size,
            "old": access.old,
            "new": access.new,
            "stack": access.stack,
        }
        return json_text(document)

    def _line(self, access: Access) -> str:
        seconds = (access.time - self._began) / 1e9
        inside = access.address - access.watched.address
        name = access.watched.text + (f"+{inside:#x}" if inside else "")
        value = f"is {_shown(access.new)}" if access.kind == "read" else f"{_shown(access.old)} -> {_shown(access.new)}"
        where = " < ".join(access.stack) or f"{access.module}:{access.function}"
        line = f" ({access.line})" if access.line else ""
        kind = "" if access.kind == "write" else f" [{access.kind}]"
        return printable(f"{seconds:12.6f} {access.pid}/{access.tid} {name}: {value}{kind} at {where}{line}")


def _shown(value: int | None) -> str:
    if value is None:
        return "?"
    return str(value) if value < 1 << 31 else f"{value:#x}"


def watch(target: targets.Target, plan: Plan) -> int:
    """Watch until the time is over, a signal comes, or all processes have ended; return the exit status."""
    targets.refuse_end(target, plan.at_end)
    _check(target, plan)
    with (
        ExitStack() as stack,
        output.results(plan.output, program_owns_output=target.owns_standard_output) as stream,
        Interrupts() as interrupts,
    ):
        looked = looked_at(stack, target, interrupts, plan.at_end)
        ends = looked.ends
        watcher = _watcher(looked.pids, plan)
        stack.callback(watcher.close)
        printer = _Printer(watcher, plan, stream)
        if looked.started is not None:
            looked.started.resume()
        if not plan.quiet:
            _introduce(watcher)
        deadline = None if plan.seconds is None else time.monotonic() + plan.seconds
        while ends and not interrupts.requested and not printer.enough:
            left = _LOOKS if deadline is None else min(_LOOKS, deadline - time.monotonic())
            if left <= 0:
                break
            for ended in interrupts.wait(ends, left):
                del ends[ended]
            printer.look()
        own_end = bool(ends) and not interrupts.requested
        count = watcher.count()
        printer.look(final=True)
        _tell(watcher, printer, count, plan)
        watcher.close()
        status = looked.settle(plan.at_end, own_end=own_end, quiet=plan.quiet)
        if looked.started is not None and not plan.quiet:
            from anyprobe.reports.heading import deaths

            for text in deaths((replace(looked.started.target_info, exe=target.program[0]),)):
                output.warn(text)
        if plan.exit_status and status is not None:
            return status
        return ExitStatus.INTERRUPTED if interrupts.by_user else ExitStatus.DONE


def _check(target: targets.Target, plan: Plan) -> None:
    """Refuse options that have no meaning together."""
    by_stores = plan.stores or plan.heap
    if plan.modules and not by_stores:
        raise click.UsageError("--module says whose stores are tested: it needs --stores or --heap")
    if by_stores and plan.reads:
        raise click.UsageError("--stores meets no reads: leave --read away")
    if by_stores and (target.program or len(target.pids) != 1):
        raise click.UsageError("--stores and --heap watch one process that runs: give -p PID")


def _watcher(pids: Sequence[int], plan: Plan) -> "Watcher | StoreWatcher":
    if not (plan.stores or plan.heap):
        return Watcher(pids, plan.texts, reads=plan.reads, stack_bytes=plan.stack_bytes)
    from anyprobe.probes.watching.store_watcher import StoreWatcher

    return StoreWatcher(pids[0], plan.texts, plan.modules, around=plan.heap)


def _introduce(watcher: "Watcher | StoreWatcher") -> None:
    """Say what is watched, and what is not."""
    if isinstance(watcher, Watcher):
        if not watcher.sees_kernel:
            output.warn("writes by the kernel (read, recv) are not met: this user may not watch it")
        return
    for each in watcher.allocations:
        output.warn(f"the allocation: {each.end - each.start} bytes at {each.start:#x}")
    refused = f", {watcher.refused:,} not (anyprobe list SPEC%store shows why)" * bool(watcher.refused)
    output.warn(f"{counted(watcher.sites, 'store')} tested{refused}; the kernel's writes are not met")


def _tell(watcher: "Watcher | StoreWatcher", printer: _Printer, count: int, plan: Plan) -> None:
    """Say how much was met, and how much of it could not be shown."""
    if not plan.quiet and plan.format is None:
        output.warn(f"{max(count, watcher.seen):,} accesses, {printer.shown:,} shown")
    missing = max(count - watcher.seen, watcher.lost)
    if missing:
        output.warn(f"{missing:,} came faster than they could be read, and are not shown")
