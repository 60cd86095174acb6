"""The kernel's switches of kprobes, as ``enable``, ``disable`` and ``optimize`` set them with ``--kernel``."""

import sys

import click

from anyprobe.cli import ExitStatus
from anyprobe.cli.terminal import output
from anyprobe.cli.terminal.interrupts import Interrupts
from anyprobe.core.errors import TargetError
from anyprobe.target.kernel import switches
from anyprobe.target.kernel.driver.covering import writes_in_force
from anyprobe.target.kernel.switches import Switch


def is_kernel(kernel: bool, seconds: float | None, pids: tuple[int, ...], names: tuple[str, ...]) -> bool:
    """Return whether the kernel is meant; complain where a process is, too, or nothing can be timed."""
    if kernel:
        check_alone(pids, names)
    elif seconds is not None:
        raise click.UsageError("--for is for --kernel")
    return kernel


def arm_kernel(*, on: bool, seconds: float | None, as_json: bool) -> None:
    """Arm or disarm all kprobes of the kernel, for some seconds or until they are switched again."""
    _switch_kernel(switches.ARMED, on, seconds, as_json, ("disarmed", "armed"), "enabled")


def optimize_kernel(*, on: bool, seconds: float | None, as_json: bool) -> None:
    """Have the kernel's kprobes reached by jumps or by traps, for some seconds or until it is switched again.

    Raises:
        TargetError: splices are in force. The driver sees to it that no kprobe beside one becomes a jump, whatever
            the switch says; so such kprobes would stay traps when this has said that they are jumps.
    """
    if on and (live := writes_in_force()):
        raise TargetError(
            f"{live} {'splice is' if live == 1 else 'splices are'} in force in the kernel's text "
            "(anyprobe driver status): kprobes beside them stay traps; switch when their sessions have ended"
        )
    _switch_kernel(switches.OPTIMIZATION, on, seconds, as_json, ("reached by traps", "reached by jumps"), "optimized")


def _switch_kernel(
    switch: Switch, on: bool, seconds: float | None, as_json: bool, words: tuple[str, str], name: str
) -> None:
    console = output.console(sys.stdout)

    def say(state: bool, rest: str) -> None:
        if not as_json:
            console.print(f"the kernel's kprobes are {words[state]}{rest}", soft_wrap=True, markup=False)
            sys.stdout.flush()

    interrupted = False
    if seconds is None:
        before = switch.read()
        switch.write(on=on)
        say(on, " already" if before is on else "")
    else:
        with Interrupts() as interrupts:
            with switch.held(on=on) as before:
                say(on, f", for {seconds:g} s")
                interrupts.wait((), seconds)
            interrupted = interrupts.by_user
            say(on if before is None else before, " again" if before is not on else ", as before")
    if as_json:
        restored = seconds is not None and before is not None
        document = {"kernel": True, name: before if restored else on, "before": before, "restored": restored}
        output.write_json(document, sys.stdout)
    if interrupted:
        raise click.exceptions.Exit(ExitStatus.INTERRUPTED)


def check_alone(pids: tuple[int, ...], names: tuple[str, ...]) -> None:
    """Complain where a process is named beside the kernel."""
    if pids or names:
        raise click.UsageError("--kernel is no process: leave out -p and -n")
