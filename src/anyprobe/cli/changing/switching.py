"""What ``enable`` and ``disable`` have in common."""

import dataclasses
import sys

from anyprobe.cli.programs import targets
from anyprobe.cli.terminal import output
from anyprobe.probes.outside import leftover


def switch(pids: tuple[int, ...], names: tuple[str, ...], *, on: bool, as_json: bool) -> None:
    """Switch everything in one process, and say what was done."""
    report = leftover.switch(targets.choose_one(pids, names), on=on)
    if as_json:
        output.write_json(dataclasses.asdict(report), sys.stdout)
    else:
        output.console(sys.stdout).print(str(report), soft_wrap=True, markup=False)
