"""An independent count: how often Valgrind's callgrind saw each instruction run, by object and link-time address."""

import os
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

Counts = dict[str, Counter[int]]


def count_instructions(
    argv: Sequence[str | Path], directory: Path, *, given: Path | str = os.devnull, environment: Mapping[str, str]
) -> tuple[bytes, Counts]:
    """Run a program under callgrind; return its output and how often each instruction ran, by file."""
    return profile(argv, directory, given=given, environment=environment)[:2]


def profile(
    argv: Sequence[str | Path], directory: Path, *, given: Path | str = os.devnull, environment: Mapping[str, str]
) -> tuple[bytes, Counts, Counts]:
    """Return the same, and how often each address was called, by file."""
    if not shutil.which("valgrind"):
        pytest.skip("needs valgrind")
    out = directory / "callgrind.out"
    options = ["--dump-instr=yes", "--dump-line=no", "--compress-strings=no", "--compress-pos=no", "--skip-plt=no"]
    command = ["valgrind", "-q", "--tool=callgrind", *options, f"--callgrind-out-file={out}", *argv]
    environment = {"PATH": os.environ["PATH"], **environment}
    with open(given, "rb") as stdin:
        outcome = subprocess.run(command, stdin=stdin, stdout=subprocess.PIPE, timeout=180, env=environment)
    assert outcome.returncode >= 0
    return outcome.stdout, *parsed(out.read_text())


def parsed(text: str) -> tuple[Counts, Counts]:
    """Return what a file in callgrind's format says of single instructions, without what they call, and of calls."""
    counts: Counts = defaultdict(Counter)
    calls: Counts = defaultdict(Counter)
    here: Counter[int] = Counter()
    called = file = ""
    of_call = False
    for line in text.splitlines():
        if line.startswith("ob="):
            file = called = os.path.realpath(line[3:])
            here = counts[file]
        elif line.startswith("cob="):
            called = os.path.realpath(line[4:])
        elif line.startswith("calls="):
            number, address = line[6:].split()[:2]
            calls[called][int(address, 16)] += int(number)
            called, of_call = file, True
        elif line.startswith("0x"):
            address, number = line.split()[:2]
            if not of_call:
                here[int(address, 16)] += int(number)
            of_call = False
    return dict(counts), dict(calls)
