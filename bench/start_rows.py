"""What it costs to start, from the shell to the last row: processor seconds, without the program's own.

Of a first start nothing is kept; later ones find what earlier ones have found out. Where punned jumps may lead is
different in each, so a few starts pass before all that is met again is kept.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from rows import Report

_EARLIER, _STARTS = 4, 5
STARTS: dict[str, tuple[str, list[str], float, float]] = {
    "one function of libc counted": ("count libc:malloc", ["/bin/true"], 0.06, 0.02),
    "all functions of true and libc counted": ("count a.out:* libc:*", ["/bin/true"], 0.5, 0.1),
    "all functions of python3.11 counted": ("count a.out:*", ["/usr/bin/python3.11", "-c", "pass"], 1.5, 0.5),
    "all functions of python3.11 timed": ("time a.out:*", ["/usr/bin/python3.11", "-c", "pass"], 4.0, 1.2),
    "the same with self times": ("time --self a.out:*", ["/usr/bin/python3.11", "-c", "pass"], 4.0, 1.2),
}
"""What is measured of which program, and seconds that must be reached with nothing kept, and with everything."""


def start_rows(report: Report) -> None:
    """Measure first and later starts."""
    for name, (what, program, cold, warm) in STARTS.items():
        if not Path(program[0]).exists():
            report.skip(name, f"there is no {program[0]} here")
            continue
        command = [str(Path(sys.executable).with_name("anyprobe")), *what.split(), "--", *program]
        with tempfile.TemporaryDirectory() as cache:
            environment = dict(os.environ, XDG_CACHE_HOME=cache)
            own = min(seconds(program, environment) for _ in range(3))
            first = seconds(command, environment) - own
            for _ in range(_EARLIER):
                seconds(command, environment)
            later = min(seconds(command, environment) for _ in range(_STARTS)) - own
        figure, must = f"{first:.2f} / {later:.2f} s", f"<= {cold:g} / {warm:g} s"
        report.add(f"{name}, cold / warm", figure, must, first <= cold and later <= warm)


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Return the processor seconds of a command and of all that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
