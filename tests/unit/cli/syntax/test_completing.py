"""What shells complete: commands, modules, functions, processes."""

import os
import subprocess
import sys

import pytest


def completed(*words):
    """Return what bash would be told, with its words."""
    environment = {
        **os.environ,
        "_ANYPROBE_COMPLETE": "bash_complete",
        "COMP_WORDS": "\n".join(["anyprobe", *words]),
        "COMP_CWORD": str(len(words)),
    }
    command = [sys.executable, "-m", "anyprobe"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    assert told.stderr == ""
    return [line.partition(",")[2] for line in told.stdout.splitlines() if line]


def test_commands_and_modules():
    assert completed("cou") == ["count"]
    assert "libc:" in completed("count", "lib")
    assert "a.out:" in completed("list", "")


def test_functions_as_a_word_and_in_the_pieces_that_bash_makes_of_it():
    assert {"libc:memcpy", "libc:memchr"} <= set(completed("count", "libc:mem"))
    assert {"memcpy", "memchr"} <= set(completed("count", "libc", ":", "mem"))
    assert "malloc" in completed("explain", "pid", ":", "libc", ":", "mallo")
    assert completed("count", "libc", ":", "malloc%re") == ["malloc%return"]
    assert completed("count", "pid:libc:malloc:e") == ["pid:libc:malloc:entry"]
    assert completed("count", "nothing:x") == []


@pytest.fixture
def other():
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_processes_and_what_they_have_mapped(other):
    pid = str(other.pid)
    assert pid in completed("count", "-p", pid[:-1])
    assert "sleep" in completed("count", "-n", "sle")
    assert "libc:malloc" in completed("count", "-p", pid, "libc:mallo")
    assert "libpython3.11:" not in completed("count", "-p", pid, "libp")


def test_bash_takes_the_script():
    environment = {**os.environ, "_ANYPROBE_COMPLETE": "bash_source"}
    script = subprocess.run([sys.executable, "-m", "anyprobe"], capture_output=True, text=True, env=environment).stdout
    assert "compopt -o nospace" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
