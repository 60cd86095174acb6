"""What takes long says so on a terminal; nothing elsewhere, and nothing when it is quick."""

import contextlib
import os
import pty
import re
import select
import sys
import time

import pytest

from anyprobe.cli import main
from anyprobe.cli.terminal import output
from anyprobe.probes import opening


class Terminal:
    """A terminal that standard error goes to."""

    def __init__(self):
        self._ours, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "w")
        self._text = b""

    def text(self):
        """Return what has been drawn so far; the end of a character may be still to come."""
        while select.select([self._ours], [], [], 0)[0]:
            self._text += os.read(self._ours, 1 << 16)
        return self._text.decode(errors="ignore")

    def close(self):
        self.stream.close()
        os.close(self._ours)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    made = Terminal()
    yield made
    made.close()


@pytest.fixture
def looked_at(terminal, monkeypatch):
    """Have standard error go to the terminal from here on: before a test begins, pytest would take it back."""
    return lambda: monkeypatch.setattr(sys, "stderr", terminal.stream)


def wait_until_drawn(terminal, what):
    deadline = time.monotonic() + 60
    while what not in terminal.text():
        assert time.monotonic() < deadline, "nothing was drawn"
        time.sleep(0.01)


def test_what_takes_long_is_named(terminal, looked_at, monkeypatch):
    looked_at()
    monkeypatch.setattr(output, "PROGRESS_AFTER", 0.05)
    with output.progress("arming", quiet=False):
        wait_until_drawn(terminal, "arming")
    assert terminal.text().endswith("\x1b[2K")  # nothing of it stays


def test_what_is_quick_says_nothing(terminal, looked_at, monkeypatch):
    looked_at()
    assert output.PROGRESS_AFTER <= 0.5
    monkeypatch.setattr(output, "PROGRESS_AFTER", 60)  # the machine may keep what is quick from running for long
    with output.progress("arming", quiet=False):
        pass
    assert terminal.text() == ""


def test_nothing_where_that_is_asked_for_or_nobody_looks(terminal, looked_at, monkeypatch, tmp_path):
    looked_at()
    monkeypatch.setattr(output, "PROGRESS_AFTER", 0.0)
    with output.progress("arming", quiet=True):
        assert terminal.text() == ""
    with open(tmp_path / "err", "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with output.progress("arming", quiet=False):
            pass
    assert (tmp_path / "err").read_text() == ""


@pytest.mark.parametrize("command", ["count", "time"])
def test_arming_that_takes_long_is_told_while_it_lasts(fakes, sleeper, terminal, looked_at, monkeypatch, command):
    looked_at()
    monkeypatch.setattr(output, "PROGRESS_AFTER", 0.05)
    monkeypatch.setattr(opening, "attach", slow(fakes.attach, lambda: wait_until_drawn(terminal, "arming")))
    assert main([command, "x:y", "-p", str(sleeper.pid), "--for", "0"]) == 0
    assert "arming" in terminal.text()


def slow(attach, wait):
    """Return what opens a session that does not arm before something has happened."""

    def opened(pid, **settings):
        session = attach(pid, **settings)
        session.count = session.time = lambda *_: wait()
        return session

    return opened


@contextlib.contextmanager
def lines_in(path):
    """Have standard error go to a file, with a line of progress as often as can be."""
    with pytest.MonkeyPatch.context() as patched, open(path, "w") as stream:
        patched.delenv("ANYPROBE_PROGRESS", raising=False)
        patched.setattr(output, "PROGRESS_LINES", 0.01)
        patched.setattr(sys, "stderr", stream)
        yield patched
        patched.undo()


def wait_until_told(path, what):
    deadline = time.monotonic() + 60
    while what not in path.read_text():
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.01)


def test_without_a_terminal_there_are_lines(tmp_path):
    path = tmp_path / "err"
    with lines_in(path), output.progress("arming", quiet=False) as arming:
        wait_until_told(path, "anyprobe: arming\n")
        arming("planning", 0, 31_236)
        wait_until_told(path, "anyprobe: arming: planning 0 of 31,236 functions (0 %)\n")
        arming._began -= 100  # so long it has taken
        arming("planning", 10_000, 31_236)
        wait_until_told(path, "anyprobe: arming: planning 10,000 of 31,236 functions (32 %), about ")
        wait_until_told(path, " s left\n")
        (left,) = set(re.findall(r"about (\d+) s left", path.read_text())[:1])
        assert 212 <= int(left) <= 290  # the 100 s for the others, and what a busy machine has taken besides
        arming("generating code", 1, 31_236)  # which has taken no time yet
        wait_until_told(path, "anyprobe: arming: generating code 1 of 31,236 functions (0 %)")


def test_the_environment_says_how_often_there_are_lines(tmp_path):
    path = tmp_path / "err"
    with lines_in(path) as patched:
        patched.setenv("ANYPROBE_PROGRESS", "0")
        with output.progress("arming", quiet=False) as arming:
            arming._teller.join(60)
            assert not arming._teller.is_alive()
    assert path.read_text() == ""


def test_a_terminal_shows_how_far_it_is(terminal, looked_at, monkeypatch):
    looked_at()
    monkeypatch.setattr(output, "PROGRESS_AFTER", 0.05)
    with output.progress("arming", quiet=False) as arming:
        arming("planning", 300, 1_200)
        wait_until_drawn(terminal, "planning 300 of 1,200 functions (25 %)")
