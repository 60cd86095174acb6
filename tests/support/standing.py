"""Probes that a command places in a program, seen from outside: once they stand, what the program does is counted."""

import signal
import subprocess
import sys
from contextlib import suppress

import anyprobe
from anyprobe.data.findings.leftover import Leftover
from anyprobe.probes.providers.function.outside import listing
from support.driver import PATIENCE, Target, wait_until


def standing(pid: int) -> list[Leftover]:
    """Return the sites in a process that are written, those of anyprobe's own use, too.

    What is listed and not written yet is shown as disabled; while something is written, another may trace the process.
    """
    with suppress(anyprobe.PermissionDenied):
        return [each for each in listing.inspect(pid).sites if "DISABLED" not in each.flags]
    return []


def probed(pid: int) -> int:
    """Return at how many sites others count in a process."""
    return sum(not each.internal for each in standing(pid))


def counted_by_command(target: Target, *arguments: str, sites: int = 1) -> str:
    """Have a command place probes at so many sites while a program runs, which then makes calls; return its output.

    The program may not get to run for a while on a busy machine, so the command does not end by itself.
    """
    target.run_freely()
    words = [sys.executable, "-m", "anyprobe", *arguments, "-p", str(target.pid)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        try:
            wait_until(lambda: command.poll() is not None or probed(target.pid) == sites, "the probes stand")
            target.halt()
            target.go(10)
            command.send_signal(signal.SIGINT)
            shown, said = command.communicate(timeout=PATIENCE)
        finally:
            command.kill()
    assert command.returncode == 130, said
    return shown
