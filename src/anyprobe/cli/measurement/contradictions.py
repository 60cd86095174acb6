"""Options of a measuring command that mean nothing for what it probes, or contradict each other."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from anyprobe.cli.measurement.plan import Plan
    from anyprobe.cli.programs import targets


def refuse(target: "targets.Target", plan: "Plan") -> None:
    """Raise ``click.UsageError`` for an option that means nothing for what is probed."""
    if plan.mechanism is not None and not target.kernel:
        raise click.UsageError("--mechanism is about probes in the kernel; --strategy is about those in programs")
    if plan.include_self and not target.kernel:
        raise click.UsageError("--include-self is about probes in the kernel")
    refuse_format(plan)
    if plan.at_once and target.program:
        raise click.UsageError("--at-once is for programs that run; what a command runs first is not where it is hot")
    if plan.at_once and plan.covers:
        raise click.UsageError("--at-once is about calls; --lazy of cover places blocks when their function is entered")
    given = {
        "--strategy": plan.strategy != "auto",
        "--returns": plan.returns not in {None, "auto"},
        "--clock": plan.clock not in {None, "auto"},
        "--self": plan.self_time,
        "--tree": plan.tree,
        "--raw": plan.raw,
        "--by tid": plan.by == "tid",
        "--live": plan.live,
        "--unsafe": plan.unsafe,
        "--maxactive": plan.maxactive is not None,
        "--max-overhead": plan.max_overhead is not None,
        "--max-setup": plan.max_setup is not None,
        "--at-once": plan.at_once,
        "--fold": plan.fold,
        "--follow": bool(plan.follow),
        "--children": plan.children is not None,
    }
    wrong = [name for name, was_given in given.items() if was_given]
    if wrong and target.kernel and not target.probed:
        raise click.UsageError(f"{wrong[0]} is about probes in programs, and there are none")


def refuse_format(plan: "Plan") -> None:
    """Raise ``click.UsageError`` for a format that cannot hold what is measured."""
    if plan.format is None:
        return
    from anyprobe.exporters.base import Needs, exporter_of

    exporter = exporter_of(plan.format)
    held = {Needs.ANYTHING: True, Needs.TREE: plan.tree or plan.stacked, Needs.COVERAGE: plan.covers}
    if not held[exporter.needs]:
        raise click.UsageError(f"--format {plan.format} {exporter.needs.value}")
    if plan.every is not None and not exporter.may_repeat:
        raise click.UsageError(f"--format {plan.format} is one document; --every would write several")
