"""A file compiled by gcc, with its driver and whatever that executes counted: the same object file."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support import counted_command

SOURCE = """
struct list { struct list *next; int value; };
static int compared(int a, int b) { return (a > b) - (a < b); }
int sum(const struct list *l) { int r = 0; for (; l; l = l->next) r += l->value; return r; }
int pick(int n) { switch (n) { case 0: return 3; case 1: return 5; case 2: return 8; case 9: return 1; } return -n; }
double mean(const double *d, long n) { double s = 0; for (long i = 0; i < n; i++) s += d[i]; return n ? s / n : 0; }
int ordered(int *a, int n) {
    int swaps = 0;
    for (int i = 1; i < n; i++)
        for (int j = i; j && compared(a[j - 1], a[j]) > 0; j--, swaps++) {
            int t = a[j];
            a[j] = a[j - 1];
            a[j - 1] = t;
        }
    return swaps;
}
"""
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
Plan = Mapping[str, Sequence[str]]
"""Specs by program: the driver is called ``gcc``, what it executes ``cc1`` and ``as``."""


def compiled_under(plan: Plan, folder: Path, level: str = "entries") -> tuple[bytes, dict[str, Any]]:
    """Return the object file and, for each program that was counted, its report.

    ``level`` says whether what the plan says is counted or timed, see ``filters.place``.
    """
    source, output = folder / "small.c", folder / "small.o"
    source.write_text(SOURCE)
    output.unlink(missing_ok=True)
    (folder / "plan.json").write_text(json.dumps({"level": level, "specs": plan}))
    counted = (sys.executable, counted_command.__file__, str(folder))
    command = ("gcc", "-wrapper", ",".join(counted), "-O1", "-c", source.name, "-o", output.name)
    # the driver itself is run as those that it runs
    driver = command if "gcc" not in plan else (*counted, *command)
    environment = {**os.environ, "LC_ALL": "C", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    outcome = subprocess.run(driver, cwd=folder, env=environment, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    reports = {name: json.loads((folder / f"{name}.json").read_text()) for name in plan}
    for name, report in reports.items():
        print(f"{name}:", {fact: value for fact, value in report.items() if fact != "functions"})
        assert report["missed"] == 0
    return output.read_bytes(), reports


def instructions_of(functions: Sequence[Sequence[str]], most: int | None = None, seed: int = 0) -> list[str]:
    """Return specs of all instructions of a report's functions, ``most`` of them chosen by ``seed`` at most."""
    if most is not None and len(functions) > most:
        functions = random.Random(seed).sample(functions, most)
    # as a glob the name means all functions that have it, where an ambiguous one is an error
    return [f"pid:{module}:[{name[0]}]{name[1:]}:insn" for module, name in functions]
