"""Measuring in programs that are executed, and in processes that appear, while a command measures."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from anyprobe.cli.measurement import measuring
from anyprobe.core.errors import SpecError, UsageError
from anyprobe.data.snapshots.last_results import results_at_end
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.probes.following.followed import Followed
from anyprobe.probes.options import SessionOptions

if TYPE_CHECKING:
    from anyprobe.cli.measurement.plan import Plan
    from anyprobe.cli.programs.targets import Target
    from anyprobe.probes.session import Session

_ENDING = 0.1
_SHOWN = 5
"""How many processes are named."""


def follow(
    stack: ExitStack, processes: "Sequence[Session]", settings: dict[str, Any], target: "Target", plan: "Plan",
    stream: TextIO,
) -> Followed:  # fmt: skip
    """Have programs followed that are executed or appear; leaving the stack ends it."""

    def prepare(session: "Session") -> None:
        session.hooks.waits = True
        _arm(session, target, plan)
        session.hooks.begin()
        session.host.life.hold_handlers()

    def prepare_running(session: "Session") -> None:
        session.hooks.waits = True
        _arm(session, target, replace(plan, quiet=True))  # what ends at once is counted, and told of at the end
        session.hooks.begin()

    def finish(session: "Session") -> Snapshot:
        if plan.records is not None:
            plan.records.look(tree.sessions, stream)  # what came earlier in others has its line earlier
            plan.records.look([session], stream, final=True)
        return measuring.with_maps(session, results_at_end(session), plan)

    options = SessionOptions(**{name: value for name, value in settings.items() if value is not None})
    if target.selection is None:
        tree = Followed(processes, options, prepare)
    else:
        from anyprobe.probes.following.appearing import Appearing

        tree = Appearing(processes, options, target.selection, prepare_running, executes=bool(plan.follow))
    tree.finish = finish
    stack.callback(tree.close)
    for session in processes:
        session.host.modules.permit_absent(permitted=bool(plan.follow))
    return tree


def nothing_yet(target: "Target") -> Snapshot:
    """Return the results where no process of the selection was there or has come."""
    return Snapshot(TargetInfo(0, "", alive=False, called=str(target.selection or "")), 0.0)


def _arm(session: "Session", target: "Target", plan: "Plan") -> None:
    """Arm the probes in a program that was executed; it is no mistake that some mean nothing there."""
    try:
        measuring.arm(session, target, plan)
    except SystemExit as end:  # of a script, which ends the command only where it is the first program's
        raise UsageError(f"the script has ended by sys.exit({end.code!r})") from None
    except SpecError:
        if not plan.specs:
            raise
        for spec in plan.specs:
            with suppress(SpecError):
                measuring.arm(session, target, replace(plan, specs=(spec,)))


def left_behind(tree: Followed) -> list[str]:
    """Return in words which processes a command, which has ended, has left behind: they are probed no more."""
    pids = tree.remaining()
    if pids:
        time.sleep(_ENDING)  # some end just after the command
        pids = tree.remaining()
    if not pids:
        return []
    some = ", ".join(map(str, pids[:_SHOWN])) + (", …" if len(pids) > _SHOWN else "")
    many = f"{len(pids)} processes that the command has" if len(pids) > 1 else "a process that the command has"
    runs = "run on without probes" if len(pids) > 1 else "runs on without probes"
    return [f"{many} left behind {runs} (pid {some}): follow with -p and --follow"]


def meant_nothing(snapshots: Sequence[Snapshot], plan: "Plan", *, later: bool) -> list[str]:
    """Return in words that specs have meant nothing in any program, where that was no mistake in the first one."""
    meant = any(each.all_sites or each.refused or each.aggregations or each.pending for each in snapshots)
    if meant or not (plan.follow or (later and snapshots[0].target.pid)):
        return []
    return [f"{' '.join(spec.text for spec in plan.specs)}: nothing of that name in any of {len(snapshots)} programs"]
