"""``anyprobe profile --off``: where threads are off processors, beside what programs have measured themselves."""

import json
import os
import shutil
import subprocess
import sys
import time

import jsonschema
import pytest

import anyprobe
from anyprobe.cli.commands.schema import text_of
from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel import bpf, perf
from anyprobe.target.kernel.perf import Sampling
from anyprobe.target.system import gateway
from live.test_command_line import anyprobe as command
from live.test_profile_python import REFUSED as NO_PYTHON
from support.driver import build, wait_until


def _refused():
    try:
        gateway.close(perf.open_switches(0, bpf.first_processor(), Sampling(1, 0, kernel=True)))
    except KernelRefused as refusal:
        return str(refusal)
    return ""


REFUSED = _refused()
pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(REFUSED), reason=REFUSED or "switches are sampled")]
TIMES, DOUBT_NS = 100, 60_000
"""Waits of each kind, and for each the way into sleep and out of it, in which no thread is off."""
SLEEPS = """
import select, sys, time
def naps(): time.sleep(0.2)
def selects(): select.select([], [], [], 0.3)  # whose stack is larger than what is copied
def inner(): selects()
def main():
    for _ in range(100): time.sleep(0.01)  # threads that have just begun are not known to be Python's
    before = time.perf_counter(); naps(); between = time.perf_counter(); inner()
    print(round((between - before) * 1e9), round((time.perf_counter() - between) * 1e9))
main()
"""


def profiled(tmp_path, *words):
    results = tmp_path / "profile.json"
    found = command("profile", "--off", "--json", "-o", str(results), "--", *words)
    assert found.returncode == 0, found.stderr
    document = json.loads(results.read_text())
    assert not list(jsonschema.Draft202012Validator(json.loads(text_of("profile"))).iter_errors(document))
    return found.stdout, document


def off(document, *functions):
    """Return the nanoseconds of all stacks in which there are all of some functions."""
    return sum(
        each["count"]
        for each in document["stacks"]
        if all(any(frame.rpartition(":")[2] == name for frame in each["frames"]) for name in functions)
    )


def test_each_wait_has_its_time_whole(tmp_path):
    program = str(build("woken_by.c", "-O1", "-pthread"))
    (tmp_path / "pages").write_bytes(os.urandom(4096))
    said, document = profiled(tmp_path, program, str(tmp_path / "pages"))
    truth = json.loads(said)
    assert document["lost"] == 0
    for name, functions in (("waited", ("sleeper",)), ("read", ("main", "read"))):
        found = off(document, *functions)
        assert truth[name] - TIMES * DOUBT_NS <= found <= truth[name], name
    assert document["waits"] >= 4 * TIMES
    assert document["hz"] == 10**9
    assert document["samples"] == sum(each["count"] for each in document["stacks"])


def test_what_sleeps_at_the_end_has_its_time_until_then_and_what_did_all_along_is_said(tmp_path):
    shell = ["/bin/sh", "-c", "read line; sleep 30"]
    with subprocess.Popen(shell, stdin=subprocess.PIPE) as process:
        wait_until(lambda: "anon_pipe_read" in where(process.pid) or "pipe_read" in where(process.pid), "its sleep")
        still = anyprobe.profile(process.pid, 0.3, off=True)
        assert still.samples == 0
        assert any("1 thread slept" in each for each in still.warnings)
        process.kill()
    with subprocess.Popen([sys.executable, "-c", "import time\ntime.sleep(0.3)\ntime.sleep(60)"]) as process:
        before = time.monotonic_ns()
        found = anyprobe.profile(process.pid, 1.0, off=True)
        passed = time.monotonic_ns() - before
        process.kill()
    assert found.waits
    assert 0.3e9 < found.samples <= passed


def where(pid):
    try:
        with open(f"/proc/{pid}/wchan") as file:
            return file.read()
    except OSError:
        return ""


@pytest.mark.skipif(bool(NO_PYTHON), reason=NO_PYTHON or "frames are copied")
@pytest.mark.skipif(not shutil.which("/usr/bin/python3.11"), reason="Python 3.11 is not there")
def test_waits_of_python_have_its_functions_also_where_the_stack_is_too_large_to_copy(tmp_path):
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    said, document = profiled(tmp_path, "/usr/bin/python3.11", str(tmp_path / "sleeps.py"))
    naps, selects = map(int, said.split())
    assert naps - 5_000_000 <= off(document, "main", "naps") <= naps
    assert selects - 5_000_000 <= off(document, "main", "inner", "selects") <= selects
    text = command("profile", "--off", "--python", "--tree", "--", "/usr/bin/python3.11", str(tmp_path / "sleeps.py"))
    assert "off processors in" in text.stderr
    assert "selects" in text.stderr


def test_pictures_say_what_they_are_of(tmp_path):
    for form, said in (("folded", "sleep"), ("flame", "Time off processors in"), ("pprof", "")):
        out = tmp_path / form
        found = command("profile", "--off", "--format", form, "-o", str(out), "--", "sleep", "0.1")
        assert found.returncode == 0, found.stderr
        assert said in out.read_bytes().decode(errors="replace")
    archive = tmp_path / "run.aprobe"
    assert command("profile", "--off", "-o", str(archive), "--", "sleep", "0.1").returncode == 0
    assert "off processors in" in command("show", str(archive)).stdout
