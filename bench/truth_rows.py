"""How true times are: what is shown of programs, against what they take without probes, in runs by turns."""

import json
import os
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
SMALL = 13
"""Jobs of ``truths.c``."""
PROGRAMS = (
    (
        "python3.11:Py_BytesMain", "python3.11:*", "/usr/bin/python3.11 -S -c",
        "print(sum(len(str(n)) for n in range(40000)))",
    ),
    ("perl:perl_run", "perl:*", "perl -e", "my %h; $h{$_ % 997} += $_ for 1..100000; print scalar keys %h"),
    ("libtcl8.6:Tcl_FSEvalFileEx", "libtcl8.6:*", "tclsh", "set s 0; for {set i 0} {$i < 20000} {incr i} {incr s $i}"),
    (
        "libsqlite3:sqlite3_step", "libsqlite3:*", "sqlite3 :memory:",
        "with recursive c(x) as (select 1 union all select x + 1 from c where x < 100000) select sum(x * x % 7) from c",
    ),
    ("libjq:jq_next", "libjq:*", "jq -n", "[range(20000) | tostring | length] | add"),
    ("libbz2:BZ2_bzWrite", "libbz2:*", "bzip2 -kc", None),
    ("liblzma:lzma_code", "liblzma:*", "xz -1 -kc", None),
)  # fmt: skip
"""A function in which a program is for most of its time, all that are timed beside it, and the program's words; the
last one is a file with that content for tclsh, and some file without it."""
HELD = 19
PYTHON = ["/usr/bin/python3.11", "-S", "-c", "print(sum(len(str(n)) for n in range(40000)))"]


def truth_rows(report: Report, _: float) -> None:
    """Shares of tiny functions, a recursion, and all functions of large programs."""
    shares_row(report)
    recursion_row(report)
    error_row(report)
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


def error_row(report: Report) -> None:
    """In how many of twenty programs the error that is printed holds the truth.

    The truth is what one function takes where it alone is timed, in a handful of calls; then all functions are.
    """
    small = _built("truths", (Path(__file__).parent / "truths.c").read_text())
    known = [(f"small job {number}", "a.out:main", "a.out:*", [small, str(number)]) for number in range(SMALL)]
    for root, everything, words, last in PROGRAMS:
        name, *rest = words.split()
        if (path := shutil.which(name)) is None:
            report.skip("errors that hold the truth", f"there is no {name}")
            return
        file = BUILD / "script.tcl" if name == "tclsh" else Path(sys.executable).resolve()
        if name == "tclsh":
            file.write_text(last or "")
        known.append((root, root, everything, [path, *rest, last if last and name != "tclsh" else str(file)]))
    held, missed = 0, []
    for name, root, everything, command in known:
        alone = [_outermost(command, root, root)[0] for _ in range(ROUNDS)]
        time, error = _outermost(command, root, root, everything)
        # what is known is known to within what runs differ by
        if min(alone) - error <= time <= max(alone) + error:
            held += 1
        else:
            missed.append(f"{name}: {time / 1e6:.2f} ms +- {error / 1e6:.2f}, true {min(alone) / 1e6:.2f}")
    report.add("errors that hold the truth", f"{held} of {len(known)} programs", f"{HELD}", held >= HELD, *missed)


def _outermost(command: Sequence[str], root: str, *specs: str) -> tuple[float, float]:
    """Return the nanoseconds that a function's outermost calls took, and how far they may be off."""
    name = root.partition(":")[2]
    (found,) = (each for each in _timed(command, *specs)["functions"] if each["function"] == name)
    return found["outermost_ns"], found.get("outermost_error_ns", 0)


def _built(name: str, text: str) -> str:
    BUILD.mkdir(mode=0o700, exist_ok=True)
    source = BUILD / f"{name}.c"
    source.write_text(text)
    subprocess.run(["gcc", "-O2", "-g", str(source), "-o", str(BUILD / name)], check=True)
    return str(BUILD / name)


def _seconds_alone(command: Sequence[str]) -> float:
    """Return the seconds of a processor that a command takes, to the nanosecond: the least of three runs."""
    found = []
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
            os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
            found.append(int(Path(f"/proc/{running.pid}/schedstat").read_text().split()[0]) / 1e9)
    return min(found)


def _timed(command: Sequence[str], *specs: str) -> dict:
    folder = Path(tempfile.mkdtemp())
    try:
        ours = [
            sys.executable,
            "-m",
            "anyprobe",
            "time",
            "--self",
            "--clock",
            "cpu",
            "--json",
            "--quiet",
            "-o",
            str(folder / "out"),
            *specs,
        ]
        subprocess.run([*ours, "--", *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads((folder / "out").read_text())
    finally:
        shutil.rmtree(folder)
