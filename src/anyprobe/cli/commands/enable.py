"""``anyprobe enable``: arm again everything that ``disable`` has disarmed."""

import click

from anyprobe.cli.syntax import helping, options


@click.command("enable", cls=helping.Command)
@options.one_target
@options.json
@click.option("--all", "everything", is_flag=True, required=True, help="All sites; there is no other choice yet.")
@options.on_kernel
@options.for_a_while
def command(
    pids: tuple[int, ...], names: tuple[str, ...], as_json: bool, everything: bool, kernel: bool, seconds: float | None
) -> None:
    """Arm again everything that disable has disarmed.

    Sessions go on, and so do the counts that they have; each probe's own state stays what it is.

    With --kernel: all kprobes of the kernel, of any tool (kprobes/enabled in debugfs).
    """
    from anyprobe.cli.changing import switching
    from anyprobe.cli.kernel import switching as kernel_switching

    del everything
    if kernel_switching.is_kernel(kernel, seconds, pids, names):
        kernel_switching.arm_kernel(on=True, seconds=seconds, as_json=as_json)
    else:
        switching.switch(pids, names, on=True, as_json=as_json)
