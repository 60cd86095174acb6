"""KernInst's tables (OSDI 1999) again, of Linux 6.1: its structure and analysis, the steps of a counter, hits."""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from kernel_rows import ROOT, SECONDS, UNAVAILABLE
from measure import HERE, compiled
from rows import Report

from anyprobe.binary.flow.blocks import block_starts
from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.kernel.image import KernelImage
from anyprobe.binary.kernel.source import KernelSource
from anyprobe.core import kept
from anyprobe.core.refusal import Refusal
from anyprobe.splice.kernel import planning
from anyprobe.splice.kernel.places import entry_of
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.target.kernel.driver import building

KERNEL = "6.1"
BLOCKS = 20_000
MOST = {"a hit by splice": 3.0}
"""What rows must reach, by their names."""


def splice_rows(report: Report, scale: float) -> None:  # noqa: ARG001 - the guest counts, repeating says nothing new
    """Add all rows."""
    made = subprocess.run([ROOT / "tools/guest", "--make", "-k", KERNEL], check=False, capture_output=True, text=True)
    if made.returncode == UNAVAILABLE:
        report.skip("splices", made.stderr.strip().splitlines()[-1])
        return
    folder = Path(made.stdout.strip())
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict("os.environ", XDG_CACHE_HOME=cache):
        _analysis(report, str(folder / "vmlinux"))
    _in_guest(report, folder)


def _analysis(report: Report, path: str) -> None:
    """Add what there is in the kernel, what finding it out takes where nothing is kept, and a plan of many blocks."""
    began = time.process_time()
    kernel = KernelSource.of_file(path).kernel
    code = CodeMap(kernel.text(), kernel.cold_parts)
    code.survey()
    found = [each for each in map(code.function_at, kernel.functions.starts.tolist()) if not isinstance(each, Refusal)]
    known = sum(each.complete is None for each in found)
    blocks = [_places(kernel, code, each) for each in found]
    seconds, number = time.process_time() - began, sum(map(len, blocks))
    size = sum(each.end - each.start for each in found)
    report.add(f"splices: Linux {KERNEL}", f"{len(found)} functions, {number} blocks, {size / 1e6:.1f} MB")
    then = f"KernInst: 15 s for 107,976 blocks, {107976 / 15:.0f}/s"
    report.add("splices: its structure", f"{seconds:.1f} s, {number / seconds:.0f} blocks/s", "", None, then)
    report.add("splices: functions whose flow is known", f"{100 * known / len(found):.2f} %")
    wants: list[Want] = []
    for each in random.Random(1).sample(blocks, len(blocks)):
        if len(wants) < BLOCKS:
            wants += [Want(at, WantKind.OFFSET, tag=at) for at in each]
    began = time.process_time()
    splices, refused = planning.plan(code, wants, Claims())
    seconds = time.process_time() - began
    room = f"{len(splices)} jumps; no room or not permitted: {len(refused)}"
    report.add(f"splices: {len(wants)} blocks planned", f"{seconds:.1f} s", "<= 4 s", seconds <= 4, room)


def _places(kernel: KernelImage, code: CodeMap, function: FunctionCode) -> tuple[int, ...]:
    """Return where a function's blocks are counted, the first one after what the kernel needs there."""
    starts, entry = block_starts(code, function), entry_of(code, function, kernel.settled)
    return starts if isinstance(entry, Refusal) else (entry, *(at for at in starts if at > entry))


def _in_guest(report: Report, folder: Path) -> None:
    """Add the steps of inserting a counter, and what hits cost, in instructions."""
    (modules,) = Path(folder, "root/lib/modules").iterdir()
    building.build(modules.name, f"{kept.directory()}/driver", made_with=str(modules / "build"))
    program = compiled(HERE / "kernel_calls.c")
    inside = f"PYTHONPATH={ROOT / 'src'} {sys.executable} {HERE / 'splice_costs.py'} {program}"
    command = [ROOT / "tools/guest", "--icount", "-k", KERNEL, "-t", str(SECONDS), inside]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for each in rows:
        if "unit" in each:
            most = MOST.get(each["row"])
            digits = 0 if each["unit"] == "instructions" else 3
            report.add(
                f"splices: {each['row']}", f"{each['value']:.{digits}f} {each['unit']}",
                "" if most is None else f"<= {most:.0f}", None if most is None else each["value"] <= most,
            )  # fmt: skip
    if not rows or rows[-1]["row"] != "splices":
        report.add("splices, in a guest", "failed", "", False, (done.stdout + done.stderr)[-500:])
