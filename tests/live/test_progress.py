"""Commands that compile handlers tell on a terminal what they are doing, when that takes long."""

import os
import pty
import subprocess
import sys
import threading

import pytest

from anyprobe.cli import main
from anyprobe.cli.terminal import output
from support.driver import wait_until

pytestmark = pytest.mark.live
END = "(all of it)"


@pytest.fixture
def terminal(monkeypatch):
    """A terminal as standard error, on which all that takes any time is told of; what it has shown."""
    ours, theirs = pty.openpty()
    shown = []

    def read():
        try:
            while text := os.read(ours, 1 << 16):
                shown.append(text)
        except OSError:  # it was closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "PROGRESS_AFTER", 0.0)
    with os.fdopen(theirs, "w") as stream:

        def told(*arguments):
            """Run a command; pytest takes standard error back before each test begins."""
            with monkeypatch.context() as patched:
                patched.setattr(sys, "stderr", stream)
                status = main(arguments)
            stream.write(END)
            stream.flush()
            wait_until(lambda: END.encode() in b"".join(shown), "what was written is read")
            text = b"".join(shown).decode()  # what is read at a time may end within a character
            assert status == 0, text
            return text

        yield told
    reader.join()
    os.close(ours)


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        (("hist", "libc:getppid", "--of", "arg0", "--by", "tid", "--for", "0"), ("attaching", "arming", "removing")),
        (("hist", "libc:getppid", "--by", "comm", "--for", "0"), ("attaching", "arming", "removing")),
        (("trace", "libc:getppid", "--print", "retval, latency_ns", "--for", "0"), ("attaching", "arming", "removing")),
        (("count", "libc:getppid", "--when", "arg0 > 1", "--for", "0"), ("attaching", "arming", "removing")),
        (("list", "libc:getp*"), ("planning",)),
        (("explain", "libc:getppid"), ("planning",)),
        (("probes",), ("looking",)),
    ],
)
def test_each_step_is_told(terminal, sleeping, command, steps):
    shown = terminal(*command, "-p", str(sleeping))
    assert all(step in shown for step in steps), shown


@pytest.fixture
def sleeping():
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()
