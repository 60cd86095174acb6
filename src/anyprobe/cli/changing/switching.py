"""What ``enable`` and ``disable`` have in common."""

import sys

import click

from anyprobe.cli.syntax import helping, options


def command_of(name: str, does: str, *, on: bool) -> click.Command:
    """Return one of both commands; ``does`` is the first line of its help."""

    @click.command(
        name,
        cls=helping.Command,
        help=f"""{does}

        Sessions go on, and so do the counts that they have; each probe's own state stays what it is.

        With --kernel: all kprobes of the kernel, of any tool (kprobes/enabled in debugfs).
        """,
    )
    @options.one_target
    @options.json
    @click.option("--all", "everything", is_flag=True, required=True, help="All sites; there is no other choice yet.")
    @options.on_kernel
    @options.for_a_while
    def command(
        pids: tuple[int, ...], names: tuple[str, ...], as_json: bool, everything: bool, kernel: bool,
        seconds: float | None,
    ) -> None:  # fmt: skip
        from anyprobe.cli.kernel import switching as kernel_switching
        from anyprobe.cli.programs import targets
        from anyprobe.cli.terminal import output
        from anyprobe.probes.providers.function.outside import leftover

        del everything
        if kernel_switching.is_kernel(kernel, seconds, pids, names):
            kernel_switching.arm_kernel(on=on, seconds=seconds, as_json=as_json)
            return
        report = leftover.switch(targets.choose_one(pids, names), on=on)
        if as_json:
            output.write_json(report, sys.stdout)
        else:
            output.console(sys.stdout).print(str(report), soft_wrap=True, markup=False)

    return command
