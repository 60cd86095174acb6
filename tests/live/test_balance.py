"""Every call of a function that uses neither exceptions nor longjmp ends by one of its exits: entries equal exits."""

import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

import anyprobe

PYTHON = "/usr/bin/python3"
LEAST = 100
"""Functions that must have been called for the comparison to mean something."""
PATIENCE = 180
WORK = """
import json, re, sys, zlib, random
def work(n):
    out = 0
    for i in range(n):
        d = {"i": i, "l": sorted(range(i % 50), key=lambda x: -x), "s": "%s-%5.2f" % ("x" * (i % 97), i / 7)}
        s = json.dumps(d, sort_keys=True)
        out += len(zlib.compress(s.encode())) + len(re.sub(r"[0-9]+", lambda m: m.group() * 2, s))
        out += len({j % 7 for j in range(i % 20)}) + (10 ** (i % 40) >> i % 13) % 97
        try:
            int("x%d" % i)
        except ValueError as e:
            out += len(repr(e))
    return out
print("ready", flush=True)
for line in sys.stdin:
    print(work(int(line)), flush=True)
"""


def wait_until_it_reads(pid):
    """Wait until the process sleeps in read(0, ...), so that the same functions are being executed each time."""
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}/syscall").read_text().split()[:2] != ["0", "0x0"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.sliced(2)
@pytest.mark.parametrize("module", ["a.out", "libc"])
def test_entries_equal_exits(module):
    if not Path(PYTHON).exists():
        pytest.skip(f"needs {PYTHON}")
    with subprocess.Popen([PYTHON, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:

            def work():
                process.stdin.write("200\n")
                process.stdin.flush()
                answer = process.stdout.readline()
                wait_until_it_reads(process.pid)
                return answer

            assert process.stdout.readline() == "ready\n"
            expected = work()
            with anyprobe.attach(process.pid) as session:
                session.count(f"{module}:*", f"{module}:*%return")
                assert work() == expected
                sites = session.snapshot().sites
            hits = {kind: Counter() for kind in ("entry", "return")}
            for site in sites:
                hits[site.kind][site.spec.rpartition(":")[0]] += site.hits
            both = hits["entry"].keys() & hits["return"].keys()
            called = {name for name in both if hits["entry"][name]}
            pairs = {name: (hits["entry"][name], hits["return"][name]) for name in both}
            # What is never called has only the returns of others that jump into its middle, as __memmove_avx_unaligned
            # does into its namesake with _erms: which one is called depends on the processor (docs/limits.md).
            assert {name: pair for name, pair in pairs.items() if pair[0] != pair[1] and pair[0]} == {}
            assert len(called) >= (LEAST if module == "a.out" else 10)
            assert work() == expected
        finally:
            process.kill()
