"""How true times are: what is shown of programs, against what they take without probes, in runs by turns."""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measure import BUILD
from rows import Report

ROUNDS = 5
TINY = """
#include <stdlib.h>
#include <stdio.h>
#define NI __attribute__((noinline, noclone, noipa))
volatile unsigned long kept;
NI unsigned long tiny(unsigned long x) { return x * 3 + 1; }
NI unsigned long many(int n) { unsigned long x = 1; for (int i = 0; i < n; i++) x = tiny(x); return x; }
NI unsigned long big(int n) {
    unsigned long x = 1;
    for (int i = 0; i < n; i++) { x = x * 3 + 1; __asm__ volatile("" : "+r"(x)); }
    return x;
}
NI unsigned long mid(int n) { unsigned long x = 0; for (int i = 0; i < n; i++) x += big(200); return x; }
int main(void) { for (int i = 0; i < 300; i++) { kept += many(20000); kept += mid(200); } return 0; }
"""
FIB = """
__attribute__((noinline, noclone, noipa)) long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
volatile long kept;
int main(void) { for (int i = 0; i < 20; i++) kept += fib(24); return 0; }
"""
PYTHON = ["/usr/bin/python3.11", "-S", "-c", "print(sum(len(str(n)) for n in range(40000)))"]


def truth_rows(report: Report, _: float) -> None:
    """Shares of tiny functions, a recursion, and all functions of large programs."""
    shares_row(report)
    recursion_row(report)
    sum_row(report, "python3.11", PYTHON, "python3.11:*")
    compiler = subprocess.run(
        ["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.access(compiler, os.X_OK):
        report.skip("all functions of cc1", "there is no cc1")
        return
    source = BUILD / "compiled.c"
    source.write_text("\n".join(f"int f{n}(int x) {{ return x * {n} + (x >> {n % 31}); }}" for n in range(800)))
    sum_row(report, "cc1", [compiler, "-quiet", "-O1", str(source), "-o", "/dev/null"], "cc1:*")


def shares_row(report: Report) -> None:
    """What share three functions have, of which callgrind says 52, 32 and 13 %."""
    program, found = _built("tiny", TINY), []
    for _ in range(ROUNDS):
        own = {each["function"]: each["self_ns"] for each in _timed([program], "a.out:*")["functions"]}
        total = sum(own.values())
        found.append({name: 100 * own[name] / total for name in ("big", "many", "tiny")})
    middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
    wanted = {"big": 52, "many": 32, "tiny": 13}
    figure = ", ".join(f"{name} {share:.0f} %" for name, share in middle.items())
    near = all(abs(middle[name] - share) <= 5 for name, share in wanted.items())
    report.add("shares of big, many, tiny", figure, "within 5 points of 52, 32, 13", near)


def recursion_row(report: Report) -> None:
    """The total of a recursion."""
    program, ratios, held = _built("fib", FIB), [], []
    for _ in range(ROUNDS):
        true = _seconds_alone([program])
        (fib,) = (each for each in _timed([program], "a.out:fib")["functions"] if each["function"] == "fib")
        ratios.append(fib["outermost_ns"] / 1e9 / true)
        held.append(abs(fib["outermost_ns"] / 1e9 - true) <= fib["outermost_error_ns"] / 1e9)
    ratio = statistics.median(ratios)
    figure = f"{ratio:.2f} of the time without probes"
    report.add("fib(24), 20 times: total", figure, "0.7 to 1.3, within its error", 0.7 <= ratio <= 1.3 and any(held))


def sum_row(report: Report, name: str, command: Sequence[str], spec: str) -> None:
    """All self times of a program against what it takes of a processor without probes."""
    ratios = []
    for _ in range(ROUNDS):
        true = _seconds_alone(command)
        document = _timed(command, spec)
        ratios.append(sum(each["self_ns"] for each in document["functions"]) / 1e9 / true)
    ratio = statistics.median(ratios)
    report.add(
        f"all functions of {name}: sum of self times", f"{ratio:.2f} of its time", "0.85 to 1.2", 0.85 <= ratio <= 1.2
    )


def _built(name: str, text: str) -> str:
    BUILD.mkdir(mode=0o700, exist_ok=True)
    source = BUILD / f"{name}.c"
    source.write_text(text)
    subprocess.run(["gcc", "-O2", "-g", str(source), "-o", str(BUILD / name)], check=True)
    return str(BUILD / name)


def _seconds_alone(command: Sequence[str]) -> float:
    """Return the seconds of a processor that a command takes in user space: the least of three runs."""
    found = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    return min(found)


def _timed(command: Sequence[str], spec: str) -> dict:
    folder = Path(tempfile.mkdtemp())
    try:
        ours = [
            sys.executable,
            "-m",
            "anyprobe",
            "time",
            "--self",
            "--json",
            "--quiet",
            "-o",
            str(folder / "out"),
            spec,
        ]
        subprocess.run([*ours, "--", *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads((folder / "out").read_text())
    finally:
        shutil.rmtree(folder)
