"""A command that tests start as a fork is, for the test and for itself, what one of its own would be."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import forked_commands

pytestmark = pytest.mark.live
COMMAND = [sys.executable, "-m", "anyprobe"]
STATUS = (
    "Umask",
    "PPid",
    "Uid",
    "Groups",
    "NoNewPrivs",
    "Seccomp",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "SigPnd",
    "Cpus_allowed",
)
"""What is compared of /proc/PID/status."""


@pytest.fixture(autouse=True)
def tests_run_as_they_were_asked_to():
    before = forked_commands.Switch.wanted
    yield
    forked_commands.Switch.wanted = before


@pytest.mark.parametrize("arguments", [["--version"], ["cover", "--help"], ["count"], ["schema", "count"], ["unknown"]])
def test_what_it_prints_and_its_status_are_the_same(arguments):
    found = []
    for wanted in (False, True):
        forked_commands.Switch.wanted = wanted
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)
        found.append((done.returncode, done.stdout, done.stderr))
    assert found[0] == found[1]
    assert forked_commands.Switch.forks is not None


LOOK = """
echo $$; cat /proc/self/status; cat /proc/$$/limits; readlink /proc/$$/cwd; ls /proc/$$/fd; cat
grep -E 'PPid|Umask|SigIgn|Uid' /proc/$PPID/status; cat /proc/$PPID/limits; readlink /proc/$PPID/cwd
cut -d' ' -f5-6 /proc/$$/stat; cut -d' ' -f5-6 /proc/$PPID/stat
"""


def seen(*, forked, **settings):
    """Return what a command and a program that it starts have, as the kernel says."""
    forked_commands.Switch.wanted = forked
    command = [
        *COMMAND,
        "count",
        "libc:getppid",
        "--quiet",
        "-o",
        os.devnull,
        "--no-follow",
        "--",
        "/bin/sh",
        "-c",
        LOOK,
    ]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **settings)
    told, _ = child.communicate("given\n", timeout=60)
    assert child.returncode == 0
    ((shell,), *lines) = (line.split() for line in told.splitlines())
    status = [words for words in lines if words and words[0].rstrip(":") in STATUS]
    assert [words[1] for words in status if words[0] == "PPid:"] == [shell, str(os.getpid())]
    own = {
        shell: "shell",
        str(child.pid): "own",
        str(os.getpid()): "test",
        str(os.getpgid(0)): "group",
        str(os.getsid(0)): "session",
    }
    others = [words for words in lines if words and not words[0].endswith(":")]
    return [[own.get(word, word) for word in words] for words in (*status, *others)]


@pytest.mark.parametrize("settings", [{}, {"cwd": "/tmp"}, {"start_new_session": True}, {"process_group": 0}], ids=str)
def test_what_it_has_and_gives_to_programs_is_the_same(settings):
    ever, fork = (seen(forked=forked, **settings) for forked in (False, True))
    assert ever == fork


def test_what_a_fork_cannot_have_is_started_as_ever():
    forked_commands.Switch.wanted = True
    given = {"env": os.environ | {"ANYPROBE_X": "1"}}
    for settings in (given, {"preexec_fn": os.getpid}, {"pass_fds": [0]}, {"umask": 0o77}):
        with subprocess.Popen([*COMMAND, "help"], stdout=subprocess.DEVNULL, **settings) as child:
            assert str(forked_commands.__file__) not in Path(f"/proc/{child.pid}/cmdline").read_text()
    umask = os.umask(0o37)
    try:
        with subprocess.Popen([*COMMAND, "help"], stdout=subprocess.DEVNULL) as child:
            assert str(forked_commands.__file__) not in Path(f"/proc/{child.pid}/cmdline").read_text()
    finally:
        os.umask(umask)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert forked_commands.signals_are_changed()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not forked_commands.signals_are_changed()
