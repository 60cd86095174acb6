"""Functions of Python in profiles: in the shares that programs have measured, and in no order that is impossible."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import cache

import pytest

from anyprobe import profile
from anyprobe.core.errors import TargetError, UnsupportedTarget
from anyprobe.probes.profiling.python.recorder import FrameRecorder
from anyprobe.probes.stacks.interpreter_places import layout_of
from anyprobe.target.system import procfs
from live.test_command_line import anyprobe


def _refused() -> str:
    """Return why the kernel copies no frames here, nothing if it does."""
    try:
        FrameRecorder(()).close()
    except TargetError as reason:
        return str(reason)
    return "" if procfs.is_first_namespace() else "this is a container"


REFUSED = _refused()
pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(REFUSED), reason=REFUSED)]
SHARES = """
import sys, time
def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        for _ in range(2000): pass
def sixty(): burn(.06)
def thirty(): burn(.03)
def ten(): sorted([2, 1], key=slow)
def slow(number):
    burn(.005)
    return number
def both():
    thirty()
    ten()
print("ready", flush=True)
while True:
    sixty()
    both()
"""
MANY_WAYS = """
import functools, json, re, sys, threading, time
def leaf(n):
    for _ in range(n): pass
    return n
def recursing(n): return leaf(20) if n == 0 else recursing(n - 1)
def keyed(x): return leaf(15) and -x
def sorting(): sorted(range(20), key=keyed)
class Made:
    def __init__(self, n): self.value = sum(each for each in generated(n))
    def __lt__(self, other): return leaf(10) < 0
    def __getattr__(self, name): return leaf(10)
def generated(n):
    for each in range(n): yield leaf(each)
def making(): return Made(12).missing
def reducing(): functools.reduce(added, range(12))
def added(a, b): return leaf(12) + a + b
def substituting(): re.sub("a", replaced, "banana" * 3)
def replaced(match): return str(leaf(12))
def raising():
    try: failing(3)
    except ValueError: leaf(10)
def failing(n):
    if n: failing(n - 1)
    else: raise ValueError(leaf(5))
def ünïcode(): leaf(30)
def round():
    recursing(6); sorting(); making(); reducing(); substituting(); raising(); ünïcode()
    min(Made(2), Made(3))
def in_thread():
    while True: round()
print("ready", flush=True)
threading.Thread(target=in_thread, daemon=True).start()
in_thread()
"""
LOOP = "_PyEval_EvalFrameDefault"
CALLERS = {
    "leaf": {"recursing", "keyed", "generated", "added", "replaced", "raising", "failing", "ünïcode", "Made.__lt__",
             "Made.__getattr__"},
    "recursing": {"recursing", "round"}, "keyed": {"sorting"}, "sorting": {"round"}, "making": {"round"},
    "generated": {"Made.__init__.<locals>.<genexpr>", "Made.__init__"},
    "Made.__init__.<locals>.<genexpr>": {"Made.__init__"},
    "Made.__init__": {"making", "round"}, "Made.__lt__": {"round"}, "Made.__getattr__": {"making"},
    "reducing": {"round"}, "added": {"reducing"}, "substituting": {"round"}, "replaced": {"sub"},
    "sub": {"substituting"}, "raising": {"round"}, "failing": {"failing", "raising"}, "ünïcode": {"round"},
    "round": {"in_thread"}, "in_thread": {"<module>", "Thread.run"}, "Thread.run": {"Thread._bootstrap_inner"},
    "Thread._bootstrap_inner": {"Thread._bootstrap"},
    "_compile": {"sub"},
}  # fmt: skip
"""What may have called each function."""


@cache
def pythons() -> dict[str, str]:
    """Return the interpreters of this machine that are there to be tried, by their versions."""
    found = {}
    for name in (sys.executable, "/usr/bin/python3", *(f"python3.{minor}" for minor in range(8, 16))):
        path = shutil.which(name)
        if path is None:
            continue
        asked = "import sys; print(sys.version_info[1], getattr(sys, '_base_executable', sys.executable))"
        answer = subprocess.run([path, "-c", asked], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            minor, executable = answer.stdout.split()
            found.setdefault(f"3.{minor}" + (" of Debian" if executable.startswith("/usr/bin") else ""), executable)
    return found


KNOWN = [each for each in pythons() if each.split()[0] in ("3.11", "3.12", "3.13")]
OTHERS = [each for each in pythons() if each not in KNOWN]


@contextmanager
def program(tmp_path, text, python):
    path = tmp_path / "shop" / "app.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with subprocess.Popen([pythons()[python], path], stdout=subprocess.PIPE, text=True) as target:
        try:
            assert target.stdout.readline() == "ready\n"
            yield target
        finally:
            target.kill()


def own(stack):
    """Return the functions of Python on a stack, innermost first, and None in place of what is not known."""
    shown = [each for each in stack.frames if each.module.endswith(".py") or each.function == LOOP]
    return [None if each.function == LOOP else each.function for each in shown]


@pytest.mark.parametrize("python", KNOWN)
def test_shares_are_those_that_the_program_has_measured(tmp_path, python):
    with program(tmp_path, SHARES, python) as target:
        found = profile(target.pid, 3.0, hz=299)
    samples = {each.function: each.total_samples for each in found.functions if each.module == "shop/app.py"}
    known = samples["<module>"]  # what is not known is missing of all alike
    assert known > max(20, found.samples / 2)
    for name, share in (("sixty", 0.6), ("thirty", 0.3), ("both", 0.4), ("ten", 0.1), ("slow", 0.1)):
        error = 4 * (share * (1 - share) / known) ** 0.5
        assert samples[name] / known == pytest.approx(share, abs=error + 0.02), name


@pytest.mark.parametrize("python", KNOWN)
def test_no_function_is_shown_below_one_that_does_not_call_it(tmp_path, python):
    with program(tmp_path, MANY_WAYS, python) as target:
        found = profile(target.pid, 2.5, hz=999)
    chains = {tuple(own(stack)) for stack in found.stacks}
    pairs = {(called, caller) for chain in chains for called, caller in itertools.pairwise(chain)}
    assert {called for called, _ in pairs} >= {"leaf", "recursing", "keyed", "generated", "added", "ünïcode", "round"}
    told = {pair for pair in pairs if None not in pair}
    assert {(called, caller) for called, caller in told if caller not in CALLERS.get(called, ())} == set()


def test_a_program_that_is_started_is_shown_with_its_functions_as_a_tree_and_in_other_formats(tmp_path):
    (tmp_path / "app.py").write_text("def sums():\n  return sum(range(10 ** 8))\nfor _ in range(2): sums()\n")
    command = ["--", pythons()[KNOWN[0]], str(tmp_path / "app.py")]
    done = anyprobe("profile", "--tree", "-o", str(tmp_path / "tree"), *command, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "tree").read_text()
    assert re.search(r"[├└]─ <module> .*app\.py\n(.*\n)*.*[├└]─ sums .*app\.py\n(.*\n)*.*builtin_sum", text), text
    done = anyprobe("profile", "--json", "-o", str(tmp_path / "json"), *command)
    stacks = json.loads((tmp_path / "json").read_text())["stacks"]
    assert any(re.search(r"app\.py:sums", each) for stack in stacks for each in stack["frames"])


def test_functions_of_python_alone_have_the_time_of_what_they_have_called_in_c(tmp_path):
    text = "def sums():\n  return sum(range(10 ** 5))\nprint('ready', flush=True)\nwhile True: sums()\n"
    with program(tmp_path, text, KNOWN[0]) as target:
        done = anyprobe("profile", "--python", "-p", str(target.pid), "--for", "1", "--json")
    found = json.loads(done.stdout)
    shares = {each["function"]: each["self"] / found["samples"] for each in found["functions"]}
    assert shares["sums"] > 0.6
    assert set(shares) <= {"sums", "<module>", LOOP, "[no function of Python]"}


def test_versions_whose_frames_are_not_known_are_named(tmp_path):
    with pytest.raises(UnsupportedTarget, match=r"Python 3\.99 is none of 3\.11, 3\.12, 3\.13"):
        layout_of(0x036300F0)
    for python in OTHERS:
        with program(tmp_path, SHARES, python) as target:
            found = profile(target.pid, 0.5)
        assert any("Python's functions are not known" in each and "3.11" in each for each in found.warnings), python
        assert found.samples


def test_samples_of_which_the_functions_are_not_known_are_told(tmp_path):
    deep = (
        "def deep(n):\n  if n: deep(n - 1)\n  else:\n    print('ready', flush=True)\n    while True: pass\ndeep(300)\n"
    )
    with program(tmp_path, deep, KNOWN[0]) as target:  # more calls than are copied
        found = profile(target.pid, 1.0)
    unknown = sum(each.count for each in found.stacks if any(frame.function == LOOP for frame in each.frames))
    (said,) = (re.search(r"not known, or not all, of (\S+) of (\S+) samples", each) for each in found.warnings)
    assert [int(each.replace(",", "")) for each in said.groups()] == [unknown, unknown]
    assert unknown > 10
    assert not any(each.module == "shop/app.py" for each in found.functions)
