"""``fn+0`` to ``fn+255`` of real functions, as the kernel's own test does it: boundaries are armed, run and removed.

What lies between is refused with the true boundaries beside it.
"""

import re
import subprocess

import pytest

import anyprobe
from support.driver import wait_until, waits_for_input
from support.results import hits

PYTHON = "/usr/bin/python3"
WORK = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    total = 0
    for i in range(40):
        d = {j: str(j) * 3 for j in range(i)}
        total += len(repr(sorted(d.items(), key=lambda kv: kv[1]))) + sum(map(ord, "%d %s" % (i, [i] * 4)))
        total += len(bytes(i * 50) + b"x") + len(getattr("abc", "upper")())
    print(total, flush=True)
"""
FUNCTIONS = (
    "a.out:PyObject_GetAttr",
    "a.out:PyDict_SetItem",
    "a.out:_PyEval_EvalFrameDefault",
    "libc:malloc",
    "libc:free",
)
SWEPT = 256


def boundaries(path, start, size):
    """Return the offsets of instructions, as objdump sees them."""
    command = [
        "objdump",
        "-d",
        "--no-show-raw-insn",
        f"--start-address={start}",
        f"--stop-address={start + size}",
        path,
    ]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(at, 16) - start for at in re.findall(r"^\s+([0-9a-f]+):\s", listing, re.MULTILINE)]


@pytest.fixture
def python():
    with subprocess.Popen([PYTHON, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
            process.stdin.close()
            process.stdin = None
            assert process.wait(180) == 0
        finally:
            process.kill()


def work(process):
    """Have it work; it is done when it waits for more, not yet when it has answered."""
    process.stdin.write("\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    wait_until(lambda: waits_for_input(process.pid), "it waits for more")
    return answer


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sweep(python, name):
    expected = work(python)
    with anyprobe.attach(python.pid) as session:
        (site,) = session.resolve(name)[0]
        size = min(site.function.size, SWEPT)
        # an instruction at the end of the sweep may go on behind it
        known = boundaries(site.object.path, site.function.start, size + 16)
        known = [offset for offset in known if offset < site.function.size] + [site.function.size]
        entry = session.count(name)[0]
        accepted = 0
        for offset in range(size):
            (probe,) = session.count(f"{name}+{offset:#x}")
            if offset not in known:
                ((_, refusal),) = probe.refused
                before = max(at for at in known if at < offset)
                after = min(at for at in known if at > offset)
                nearest = f"+{before:#x}, +{after:#x}" if after < site.function.size else f"+{before:#x}"
                assert refusal.reason == "not-an-instruction-boundary"
                assert refusal.detail.endswith(f"nearest: {nearest}"), (hex(offset), refusal.detail)
                continue
            assert probe.armed or probe.places[0].hook.refusal, f"{name}+{offset:#x} is neither armed nor refused"
            accepted += probe.armed
            before = hits(session.snapshot(), site.function.name)
            assert work(python) == expected
            snapshot = session.snapshot()
            if offset == 0 and probe.armed:
                arrived = [each.hits for each in snapshot.sites if each.kind == "offset" and each.offset == 0]
                assert arrived == [hits(snapshot, site.function.name) - before]
            session.remove(probe)
        assert entry.armed
        assert accepted > 0.9 * sum(offset < size for offset in known)
    assert work(python) == expected


def test_beyond_the_function(python):
    with anyprobe.attach(python.pid) as session:
        (site,) = session.resolve("libc:malloc")[0]
        with pytest.raises(anyprobe.SpecError, match=f"beyond malloc, which has {site.function.size:#x} bytes"):
            session.count(f"libc:malloc+{site.function.size:#x}")
