"""Results where standard output is closed, full, or knows ASCII only: an ordinary error, or what can be shown."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

ANYPROBE = f"'{sys.executable}' -m anyprobe"
CALLS = 500
SOURCE = f"""
__attribute__((noinline)) int größe(int x) {{ __asm__ volatile(""); return x + 1; }}
__attribute__((noinline)) int 数(const char *text) {{ __asm__ volatile("" :: "r"(text)); return text[0]; }}
int main(void) {{ int sum = 0; for (int i = 0; i < {CALLS}; i++) sum += größe(i) + 数("наш"); return sum == 1; }}
"""
ASCII_STREAMS = {"PYTHONIOENCODING": "ascii"}
ASCII_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("names") / "größe"
    source = path.with_suffix(".c")
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-g", "-O1", "-o", path, source], check=True)
    return path


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process.pid
        assert process.poll() is None, "the target died"
        process.kill()


def shell(text, **environment):
    command = ["bash", "-c", text]
    return subprocess.run(command, capture_output=True, timeout=180, env={**os.environ, **environment}, check=False)


@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")])
def test_results_that_cannot_be_written_are_an_error(sleeper, where, why):
    shown = shell(f"{ANYPROBE} count libc:malloc -p {sleeper} --for 0 {where}")
    assert shown.returncode == 1
    assert shown.stderr.decode() == f"anyprobe: cannot write to standard output: {why}\n"


def test_a_closed_output_is_told_before_anything_is_measured(sleeper):
    assert shell(f"{ANYPROBE} count libc:malloc -p {sleeper} >&-").returncode == 1  # without --for it would not end


@pytest.mark.parametrize("where", [">/dev/full", ">&-", "2>/dev/full", ">&- 2>&-"])
def test_results_reach_their_file_all_the_same(sleeper, tmp_path, where):
    path = tmp_path / "results"
    shown = shell(f"{ANYPROBE} count libc:malloc -p {sleeper} --for 0 -o '{path}' {where}")
    assert shown.returncode == 0
    assert "malloc" in path.read_text()


def test_a_full_file_is_an_error(sleeper):
    shown = shell(f"{ANYPROBE} count libc:malloc -p {sleeper} --for 0 -o /dev/full")
    assert shown.returncode == 1
    assert shown.stderr.decode() == "anyprobe: cannot write to /dev/full: No space left on device\n"


@pytest.mark.parametrize(
    ("command", "environment"),
    [("count", ASCII_LOCALE), ("time", ASCII_STREAMS), ("trace --print 'cstr(arg0, 64)'", ASCII_STREAMS)],
)
def test_names_that_are_not_ascii_are_replaced(program, command, environment):
    shown = shell(f"{ANYPROBE} {command} a.out:数 -- '{program}'", **environment)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.isascii()
    assert b"\\u6570" in shown.stderr
    assert b"Traceback" not in shown.stderr
    if "cstr" in command:
        assert shown.stderr.count(b'"\\u043d\\u0430\\u0448"') == CALLS


def test_a_mistake_is_told_in_ascii_too(program):
    shown = shell(f"{ANYPROBE} count a.out:größ -- '{program}'", PYTHONIOENCODING="ascii")
    assert shown.returncode == 2
    assert b"nearest: gr\\xf6\\xdfe" in shown.stderr
