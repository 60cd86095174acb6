"""``anyprobe doctor``: what this machine and a target permit, and what to do about what they do not."""

from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli import ExitStatus
from anyprobe.cli.syntax import helping, options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from anyprobe.cli.doctor.finding import Finding

STYLES = {"ok": "green", "limited": "yellow", "no": "bold red"}


@click.command("doctor", cls=helping.Command)
@options.one_target
@options.json
@click.option("--kernel", is_flag=True, help="Try each mechanism of probes in the running kernel, for a moment.")
def command(pids: tuple[int, ...], names: tuple[str, ...], as_json: bool, kernel: bool) -> int:
    """Say what this machine, and a process or the kernel if asked, permit. Exit status 1 for any "no".

    Nothing is changed; what --kernel tries is taken away at once, and only this process's own calls are counted by it.
    """
    import sys

    from anyprobe.cli.doctor import machine_checks, target_checks
    from anyprobe.cli.programs import targets
    from anyprobe.cli.terminal import output

    pid = targets.choose_one(pids, names) if pids or names else None
    with output.progress("looking", quiet=False):
        sections = {"machine": machine_checks.findings()}
        if pid is not None:
            sections[f"process {pid}"] = target_checks.findings(pid)
        if kernel:
            from anyprobe.cli.doctor import kernel_checks

            sections["kernel"] = kernel_checks.findings()
    following = next_command(pid, [finding for found in sections.values() for finding in found], kernel=kernel)
    if as_json:
        keys = {"machine": "machine", "kernel": "kernel"}
        document: dict[str, Any] = {
            keys.get(title, "target"): [finding.as_json() for finding in found] for title, found in sections.items()
        }
        document["next"] = following
        output.write_json(document, sys.stdout)
    else:
        render(sections, output.console(sys.stdout))
        click.echo(f"\nnext: {following}", file=sys.stdout)
    forbidden = any(finding.verdict == "no" for found in sections.values() for finding in found)
    return ExitStatus.NOT_PERMITTED if forbidden else ExitStatus.DONE


def next_command(pid: int | None, found: "Sequence[Finding]", *, kernel: bool = False) -> str:
    """Return what to try next: what remedies the first thing that forbids probing, or a first measurement."""
    forbidden = [each for each in found if each.verdict == "no"]
    forbidding = next((each for each in forbidden if each.remedy), forbidden[0] if forbidden else None)
    if kernel and forbidding is not None and not forbidding.remedy:
        return "anyprobe doctor -p PID, for a process: those can be probed where the kernel takes no probes"
    if forbidding is not None:
        again = "anyprobe doctor" + ("" if pid is None else f" -p {pid}") + " --kernel" * kernel
        return f"{forbidding.remedy or forbidding.detail}; then {again}"
    if kernel and pid is None:
        return "anyprobe count 'kernel::vfs_read' --for 5"
    if pid is None:
        return "anyprobe count 'libc:*' -- ls; or anyprobe doctor -p PID, for a running process, or --kernel, for that"
    return f"anyprobe count 'a.out:*' -p {pid} --for 5"


def render(sections: "Mapping[str, Sequence[Finding]]", console: "Console") -> None:
    """Print the findings, and under each limitation what to do."""
    from anyprobe.reports.plain import escape

    for title, found in sections.items():
        console.print(f"[bold]{title}[/bold]")
        for finding in found:
            style = STYLES[finding.verdict]
            console.print(
                f"  [{style}]{finding.verdict:8}[/{style}]{finding.name:22}{escape(finding.detail)}", soft_wrap=True
            )
            if finding.remedy:
                console.print(f"{'':32}{escape(finding.remedy)}", style="dim", soft_wrap=True)
