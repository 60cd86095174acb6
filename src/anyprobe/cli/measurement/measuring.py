"""The life of a measuring command: open, arm, wait, remove, show."""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TextIO

from anyprobe.cli import ExitStatus
from anyprobe.cli.measurement.plan import Meanwhile, Sessions, Window
from anyprobe.cli.measurement.plan import Plan as Plan  # noqa: PLC0414 - commands make it as measuring.Plan
from anyprobe.cli.programs import ending, targets
from anyprobe.cli.terminal import output, streams
from anyprobe.cli.terminal.interrupts import Interrupts
from anyprobe.core.checkpoints import interruptible
from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import Interrupted, TargetError, TargetExited, UnsupportedTarget
from anyprobe.core.refusal import Reason
from anyprobe.data.snapshots.last_results import results_at_end, with_end_of
from anyprobe.data.snapshots.snapshot import MARKERS, Snapshot

if TYPE_CHECKING:
    from anyprobe.cli.programs.targets import Measured
    from anyprobe.data.findings.pending import PendingSpec
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.probes.session import Session


def measure(target: targets.Target, plan: Plan) -> int:
    """Run one measurement and return the exit status."""
    targets.refuse_end(target, plan.at_end)
    owns_terminal = plan.front is not None and plan.front.owns_terminal
    # imported where any may be: a plain count takes no time for it
    if target.kernel or plan.mechanism is not None or plan.include_self or plan.format is not None or plan.at_once:
        from anyprobe.cli.measurement import contradictions

        contradictions.refuse(target, plan)
    if plan.format == "archive":
        from anyprobe.cli.measurement import keeping

        plan = replace(plan, run=keeping.new_run())
    streams.Asked.ends_lines = plan.lines
    for place in target.everywhere:
        plan.warn(
            f"{place}: hits in all processes, by the kernel's uprobes, a microsecond or two each; with -p PID, or a "
            "command after --, a nanosecond"
        )
    with (
        ExitStack() as stack,
        output.results(plan.output, program_owns_output=target.owns_standard_output) as stream,
        Interrupts() as interrupts,
    ):
        with output.progress("attaching", quiet=plan.quiet), collection_paused():
            settings = {
                "strategy": plan.strategy,
                "maxactive": plan.maxactive,
                "clock": plan.clock,
                "returns": plan.returns,
                "self_time": plan.self_time or None,
                "call_tree": plan.tree or None,
                "raw": plan.raw or None,
                "by_thread": plan.by == "tid" or None,
                "live": plan.live or None,
                "unsafe": plan.unsafe or None,
                "children": plan.children,
                "max_setup": plan.max_setup,
                "at_once": plan.at_once or None,
                "pending": {None: "modules", True: "always", False: "once"}[plan.pending],
            }
            kernel = []
            if target.kernel:
                kernel = [targets.open_kernel(stack, target, plan.mechanism, include_self=plan.include_self)]
            processes = targets.open_sessions(stack, target, owns_terminal, **settings) if target.probed else []
            started = start(stack, target, processes)
            if started is not None and not owns_terminal:
                interrupts.serve(started.pid)
            tree = None
            if target.new or (processes and (bool(target.program) if plan.follow is None else plan.follow)):
                from anyprobe.cli.measurement import following

                tree = following.follow(stack, processes, settings, target, plan, stream)
                tree.checkpoint = interrupts.check
            running = {*target.pids, *(each.pid for each in (*processes, *([] if started is None else [started])))}
            window = plan.window or Window()
            sessions = Sessions(processes, window, kernel, endless=not running or target.new, tree=tree)
        ends = targets.end_descriptors(stack, running)
        stack.enter_context(ending.mistakes_end(started, plan.at_end))
        if started is not None and (target.probed if target.of_chosen is None else target.of_chosen):
            for each in kernel:
                count_command_alone(each, started.pid, plan)
        with ExitStack() as preparing:
            arming = output.progress("arming", quiet=plan.quiet)
            preparing.enter_context(interruptible(interrupts.check, arming))
            with arming, collection_paused():
                for session in arming_order(sessions, plan):
                    session.hooks.waits = True
                    arm(session, target, plan)
            for session in sessions.all:
                with interrupts.ending_functions():
                    session.hooks.begin()
            for spec in waiting(sessions.processes) if started is None else ():
                plan.warn(str(spec))
            if started is not None:
                release(started, processes, plan)
        if tree is not None:
            tree.begin()
        if started is None and plan.records is None:
            sessions.window.open(sessions.all, in_slices=plan.max_setup is not None and not plan.covers)
        placed = any(map(has_placed, sessions.all))
        replacements = ending.Replacements(
            sessions.processes,
            plan.warn,
            started=started is not None,
            followed=None if tree is None else tree.has_followed,
        )
        own_end = False
        waits = (
            target.program
            or not plan.specs
            or plan.pending
            or any(each.host.modules.may_count for each in sessions.processes)
        )
        if placed or waits or tree is not None:  # a script may place probes later
            meanwhile = Meanwhile(
                sessions, plan, stream, ends=ends, interrupts=interrupts, replacements=replacements, show=show_meanwhile
            )
            (meanwhile.wait if plan.front is None else partial(plan.front.lead, meanwhile))()
            own_end = bool(ends) and not interrupts.requested
            placed = placed or any(map(has_placed, sessions.all))
        if tree is not None and interrupts.requested:
            tree.follow_no_more()
        left = following.left_behind(tree) if tree is not None and started is not None and not ends else []
        replacements.look(ends)
        if plan.records is not None:
            plan.records.look(sessions.all, stream)
        for process in sessions.processes if plan.at_once else ():
            process.host.modules.leave_out_later()
        sessions.window.close(sessions.all)
        with output.progress("removing", quiet=plan.quiet):
            snapshots = sessions.results(lambda session: with_maps(session, results_at_end(session), plan))
            snapshots = snapshots or [following.nothing_yet(target)]
        if plan.records is not None:
            plan.records.look(sessions.all, stream, final=True)
        status = None
        if started is not None:
            how = plan.at_end or (ending.KILL if own_end else ending.LEAVE)
            status = ending.settle(started, how, quiet=plan.quiet)
            if target.probed:
                snapshots = [with_end_of(started.target_info, each) for each in snapshots]
        if tree is not None:
            placed = placed or any(each.armed for snapshot in snapshots for each in snapshot.all_sites)
            placed = placed or (target.new and not any(each.refused for each in snapshots))
            nothing = following.meant_nothing(snapshots, plan, later=target.new)
            snapshots[0] = replace(snapshots[0], warnings=(*snapshots[0].warnings, *tree.notes(), *left, *nothing))
        if plan.run is not None:
            plan.run.builds.update(keeping.builds_of(sessions.processes))
        show(snapshots, plan, stream)
        return exit_status(snapshots, status, plan, placed=placed, interrupts=interrupts)


def arming_order(sessions: Sessions, plan: Plan) -> "list[Measured]":
    """Return sessions in the order in which they are armed: the kernel first where records wait until all are."""
    if getattr(plan.records, "waits_for_all", False):
        return [*sessions.kernel, *sessions.processes]
    return sessions.all


def waiting(sessions: "Sequence[Session]") -> "list[PendingSpec]":
    """Return the specs that wait for libraries."""
    return [spec for session in sessions for spec in session.pending]


def has_placed(session: "Measured") -> bool:
    """Return whether anything is armed; if all that was asked for was refused, there is nothing to wait for."""
    return any(probe.armed for probe in session.probes)


def arm(session: "Measured", target: targets.Target, plan: Plan) -> None:
    """Arm the probes that are meant for this session; a target that dies, and Ctrl-C, are ordinary ends."""
    specs = targets.meant_for(target, session.pid, plan.specs)
    if plan.specs and not specs:
        return
    try:
        plan.arm(session, specs)
    except (TargetExited, Interrupted) as event:
        plan.warn(str(event))
    except TargetError as error:
        if session.pid == targets.KERNEL or targets.on_process(session).host.became() is None:
            raise  # of another program, what follows it is said at the end
        plan.warn(str(error))


def start(stack: ExitStack, target: targets.Target, processes: "Sequence[Session]") -> "ending.Started | None":
    """Return the command that was started to be probed, or start the one that is not to be; None without a command."""
    if not target.program or processes:
        return processes[0] if target.program else None
    from anyprobe.cli.programs.started import Unprobed

    return stack.enter_context(Unprobed(target.program))


def count_command_alone(kernel: "KernelSession", pid: int, plan: Plan) -> None:
    """Let hits in the kernel be those of the command that programs' probes are in; say so where that cannot be."""
    try:
        children = plan.children in {None, "count"}
        if plan.mechanism == "splice" and children:
            raise UnsupportedTarget("splices do not follow what it starts; --children ignore leaves that out")
        kernel.choose(pid, children=children)
    except TargetError as error:
        plan.warn(f"in the kernel the hits of all processes count, not the command's alone: {error}")


def release(started: "ending.Started", processes: "Sequence[Session]", plan: Plan) -> None:
    """Let a started command go; the probes in its libraries are armed on the way."""
    try:
        for session in processes:
            session.host.life.hold_handlers()
        started.resume()
    except (TargetExited, Interrupted) as event:
        plan.warn(str(event))


def show_meanwhile(sessions: Sessions, plan: Plan, stream: TextIO) -> None:
    """Write what was counted since the last time."""
    show(sessions.results(lambda each: with_maps(each, each.snapshot(), plan)), plan, stream, between=True)


def with_maps(session: "Measured", snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Return the results with what the session's maps hold, where that is wanted."""
    handling = targets.on_process(session).host.handlers.used if plan.maps and session.pid != targets.KERNEL else None
    if handling is None:
        return snapshot
    try:
        return replace(snapshot, maps=handling.maps())
    except TargetError as error:  # one changes faster than it can be read
        return replace(snapshot, warnings=(*snapshot.warnings, str(error)))


def show(snapshots: Sequence[Snapshot], plan: Plan, stream: TextIO, *, between: bool = False) -> None:
    """Write the results of all processes as one table or document; ``between``: of the time since the last ones."""
    if plan.seen is not None:
        snapshots = [plan.seen(snapshot) for snapshot in snapshots]
    snapshots = [snapshot.distinct() for snapshot in snapshots]
    if plan.fold:
        snapshots = [snapshot.folded() for snapshot in snapshots]
    elif plan.format is None:
        snapshots = [
            snapshot.folded(MARKERS) if any(site.kind in MARKERS for site in snapshot.sites) else snapshot
            for snapshot in snapshots
        ]
    if len(snapshots) == 1:
        together = snapshots[0]
    else:
        from anyprobe.probes.group import merged

        together = merged(snapshots)
    if plan.lines:
        stream = sys.stderr
    last = None
    if between or (plan.shown and plan.format == "archive"):  # which has what came after the last interval, too
        from anyprobe.data.snapshots.interval import since

        last = since(together, plan.shown[-1] if plan.shown else None, time.strftime("%H:%M:%S"))
    several = bool(plan.shown)
    plan.shown[:] = [together]
    if plan.front is not None:
        plan.front.take(together, last)
        if plan.format is None and (between or (plan.output is None and plan.front.has_led)):
            plan.warn(*together.warnings)
            return
    if plan.format is not None and not plan.lines:
        from anyprobe.exporters.base import Measurement, exporter_of

        exporter = exporter_of(plan.format)
        if not exporter.holds_warnings:
            plan.warn(*together.warnings)
        found = Measurement(
            snapshots=snapshots,
            together=together,
            last=last,
            between=between,
            by=plan.by,
            repeated=plan.every is not None,
            nonzero=plan.every is not None if plan.nonzero is None else plan.nonzero,
            buckets=plan.every is None if plan.buckets is None else plan.buckets,
            always=plan.always,
            records=plan.records.document() if plan.records is not None else plan.run.records if plan.run else {},
            run=plan.run,
        )
        if plan.stacked:
            from anyprobe.exporters.stacked import by_stack

            found = by_stack(found)
        exporter.write(found, stream)
        return
    plan.warn(*together.warnings)
    if several and last is None and plan.spaced and not plan.lines:
        stream.write("\n")
    shown = last or together
    if not plan.full_names:
        from anyprobe.reports.names import with_short_names

        shown = with_short_names(shown)
    plan.render(shown, output.console(stream), plan.top)
    stream.flush()


def exit_status(
    snapshots: Sequence[Snapshot], ended: int | None, plan: Plan, *, placed: bool, interrupts: Interrupts
) -> int:
    """Return the command's own status on demand; 130 after Ctrl-C; 1 when nothing that was asked for could be placed,
    or had been when a signal asked for the end, 2 when there are no such instructions; else 0.
    """  # noqa: D205 - one sentence
    if plan.exit_status and ended is not None:
        return ended
    if interrupts.by_user:
        return ExitStatus.INTERRUPTED
    reasons = {site.reason for snapshot in snapshots for site in snapshot.refused}
    pending = any(snapshot.pending for snapshot in snapshots)
    placed = placed or Reason.GONE.value in reasons  # in a library that has been unloaded
    if placed or not (reasons or (interrupts.requested and plan.specs and not pending)):
        return ExitStatus.DONE
    return ExitStatus.USAGE if reasons == {Reason.NOT_A_BOUNDARY.value} else ExitStatus.NOT_PERMITTED
