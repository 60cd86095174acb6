"""``anyprobe optimize``: have the probes in a process reached by jumps, or by traps."""

import click

from anyprobe.cli.syntax import helping, options


@click.command("optimize", cls=helping.Command)
@click.argument("switch", type=click.Choice(["on", "off"]))
@options.one_target
@options.json
@options.on_kernel
@options.for_a_while
def command(
    switch: str, pids: tuple[int, ...], names: tuple[str, ...], as_json: bool, kernel: bool, seconds: float | None
) -> int:
    """Have the probes in a process reached by jumps (on), or by traps (off), wherever that is safe.

    It is done by the session that has made them, at its next look; so are probes that are made later. Traps can kill
    a program that blocks SIGTRAP: see docs/limits.md.

    With --kernel: all kprobes of the kernel, of any tool (the sysctl debug.kprobes-optimization).
    """
    import sys

    from anyprobe.cli.kernel import switching
    from anyprobe.cli.programs import targets
    from anyprobe.cli.terminal import output

    if switching.is_kernel(kernel, seconds, pids, names):
        switching.optimize_kernel(on=switch == "on", seconds=seconds, as_json=as_json)
        return 0
    from anyprobe.probes.providers.function.outside import requests

    report = requests.ask_for_optimization(targets.choose_one(pids, names), on=switch == "on")
    if as_json:
        output.write_json(report, sys.stdout)
    else:
        output.console(sys.stdout).print(str(report), soft_wrap=True, markup=False)
    return 0 if report.done and report.sessions else 1
