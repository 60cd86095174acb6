"""The screen of ``top``: what it shows is what the program counted itself, keys do what they say, nothing is left."""

import asyncio
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from contextlib import contextmanager

import pytest
from textual.widgets import DataTable, Static

from anyprobe.cli import main
from anyprobe.cli.top.session import Top
from anyprobe.data.archives.runs import read
from support.driver import PATIENCE, wait_until
from support.image import Image

pytestmark = pytest.mark.live

SPECS = tuple(f"a.out:{name}" for name in ("outer", "middle", "deep", "fib"))
COLOURS = {*range(30, 39), *range(40, 49), *range(90, 98), *range(100, 108)}
"""The parameters by which a terminal is told a colour; 39 and 49 are its own."""
LEAVES = b"\x1b[?1049l"
"""What has a terminal show again what was there before."""


@pytest.fixture
def driven(monkeypatch, tmp_path):
    """Return a function that runs the command with its screen driven by a coroutine; it returns the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("anyprobe.cli.top.session.require_terminal", lambda instead: None)

    def run(drive, *arguments, size=(80, 24)):
        async def driving(screen):
            async with screen.run_test(size=size) as pilot:
                await drive(screen, pilot)

        monkeypatch.setattr(Top, "show", lambda top, screen: asyncio.run(driving(screen)))
        return main(["top", *arguments])

    return run


async def until(pilot, condition, what):
    """Wait for a condition, with the screen at work."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        await pilot.pause(0.02)


def shown(screen, part="functions"):
    """Return the cells of a table, row by row."""
    table = screen.query_one(f"#{part}", DataTable)
    return [[str(cell).strip() for cell in table.get_row_at(row)] for row in range(table.row_count)]


def names(screen):
    return [row[-2] for row in shown(screen)]


def said(screen, part="said"):
    return str(screen.query_one(f"#{part}", Static).render())


def counted(screen):
    """Return how many calls of each function there were so far, as the screen knows it."""
    together = screen.top.together
    return {each.function: each.count for each in together.functions} if together else {}


async def counted_as(screen, pilot, calls):
    await until(pilot, lambda: calls.items() <= counted(screen).items(), f"{calls} is shown: {counted(screen)}")


async def ordered(screen, pilot, target, key, wanted):
    """Press a key that sorts, and wait for the order in an interval that has calls of all functions."""
    await pilot.press(key)
    deadline = time.monotonic() + PATIENCE
    while names(screen) != wanted:
        assert time.monotonic() < deadline, names(screen)
        await asyncio.to_thread(target.go, 2)
        await pilot.pause()


def test_keys_sort_choose_disarm_and_save(run_target, driven):
    target = run_target("nested_calls.c", options=("-pthread",))
    before = Image.of(target.pid)

    async def drive(screen, pilot):
        await ordered(screen, pilot, target, "c", ["fib", "deep", "middle", "outer"])
        await ordered(screen, pilot, target, "n", ["deep", "fib", "middle", "outer"])
        rounds = target.counts.calls["outer"]
        first = {name: target.counts.calls[name] for name in ("outer", "middle", "deep", "fib")}
        await counted_as(screen, pilot, first)
        await pilot.press("slash", *"mid", "enter")
        assert names(screen) == ["middle"]
        assert "only 'mid'" in said(screen, "head")
        await pilot.press("enter")
        found = {row[3]: row[0] for row in shown(screen, "calls")}
        assert found == {"← outer": f"{first['middle']:,}", "→ deep": f"{first['deep']:,}"}
        await pilot.press("down", "enter")
        assert screen.selected.function == "deep"
        assert shown(screen, "calls")[0][3] == "← middle"
        await pilot.press("escape", "a")
        assert said(screen) == "deep: disarmed"
        calls = (await asyncio.to_thread(target.go, 5)).calls
        second = {name: calls[name] for name in ("outer", "fib")} | {"deep": first["deep"]}
        await counted_as(screen, pilot, second)
        assert "deep (disarmed)" in names(screen)
        await pilot.press("f")
        await asyncio.to_thread(target.go, 1)
        frozen = shown(screen)
        await until(pilot, lambda: counted(screen)["outer"] > second["outer"], "it goes on behind")
        assert shown(screen) == frozen
        assert "FROZEN" in said(screen, "head")
        await pilot.press("f", "a")
        assert said(screen) == "deep: armed"
        calls = (await asyncio.to_thread(target.go, 5)).calls
        missed = 6 * first["deep"] // rounds  # in six rounds
        await counted_as(screen, pilot, {"outer": calls["outer"], "deep": calls["deep"] - missed})
        assert "calls/s" in said(screen, "map")
        await pilot.press("w")
        assert "saved " in said(screen)
        await pilot.press("q")

    assert driven(drive, *SPECS, "-p", str(target.pid), "--every", "0.5") == 0
    (path,) = (name for name in os.listdir() if name.endswith(".aprobe"))
    kept = read(path)
    totals = {each.function: each.count for each in kept.snapshots[0].functions}
    assert totals["outer"] == target.counts.calls["outer"]
    assert sum(one.count for each in kept.series for one in each.functions if one.function == "fib") == totals["fib"]
    assert main(["show", path]) == 0
    before.assert_restored(target.pid)
    target.finish()


def test_a_program_that_ends_stays_on_the_screen(driven, compiled):
    async def drive(screen, pilot):
        await until(pilot, lambda: screen.ended, "it has ended")
        await pilot.pause()
        assert "ENDED" in said(screen, "head")
        assert names(screen) == ["main"]
        assert shown(screen)[0][0] != "-"  # of all its time
        await pilot.press("q")

    program = compiled("short_end_of_top.c", text="int main(void) { return 0; }")
    assert driven(drive, "a.out:main", "--every", "0.1", "--", str(program)) == 0


def test_what_has_no_terminal_is_told_what_to_do(capsys, monkeypatch):
    assert main(["top", "a.out:*", "-p", str(os.getpid())]) == 2
    assert f"without one: anyprobe time --self --every 1 'a.out:*' '-p {os.getpid()}'" in capsys.readouterr().err
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    monkeypatch.setenv("TERM", "dumb")
    assert main(["top", "a.out:*", "-p", str(os.getpid())]) == 2
    assert "TERM names no terminal" in capsys.readouterr().err


@contextmanager
def on_a_terminal(*arguments, **environment):
    """Run the command on a terminal of 80 by 24; give its pid, the terminal, and what it has written so far."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(environment)
        os.execv(sys.executable, [sys.executable, "-m", "anyprobe", "top", *arguments])  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    try:
        yield pid, terminal
    finally:
        os.close(terminal)


def read_until(terminal, text, so_far=b""):
    """Read what a terminal is sent, until some text comes, or with ``None`` its end."""
    deadline = time.monotonic() + PATIENCE
    while text is None or text not in so_far:
        assert time.monotonic() < deadline, so_far[-500:]
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                more = os.read(terminal, 1 << 16)
            except OSError:  # the last process that had it has ended
                more = b""
            if not more:
                assert text is None, so_far[-500:]
                break
            so_far += more
    return so_far


@pytest.mark.parametrize(
    ("how", "status"), [("q", 0), ("ctrl-c", 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)], ids=str
)
def test_the_terminal_and_the_program_are_as_before(run_target, how, status):
    target = run_target("nested_calls.c", options=("-pthread",))
    before = Image.of(target.pid)
    with on_a_terminal(*SPECS, "--every", "0.2", "-p", str(target.pid), TERM="xterm-256color", NO_COLOR="1") as (
        pid,
        terminal,
    ):
        modes = termios.tcgetattr(terminal)
        read_until(terminal, b"calls/s")
        assert termios.tcgetattr(terminal) != modes
        if isinstance(how, signal.Signals):
            os.kill(pid, how)
        else:
            os.write(terminal, {"q": b"q", "ctrl-c": b"\x03"}[how])
        written = read_until(terminal, LEAVES)
        wait_until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), "it has ended")
        assert termios.tcgetattr(terminal) == modes
        read_until(terminal, None, written)
        assert b"\x1b[?25h" in written  # the cursor
        looks = {int(each) for look in re.findall(rb"\x1b\[([\d;]*)m", written) for each in look.split(b";") if each}
        assert not looks & COLOURS
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status
    before.assert_restored(target.pid)
    target.finish()


def test_a_terminal_that_goes_away_ends_it(run_target):
    target = run_target("nested_calls.c", options=("-pthread",))
    before = Image.of(target.pid)
    with on_a_terminal(*SPECS, "--every", "0.2", "-p", str(target.pid), TERM="xterm") as (pid, terminal):
        read_until(terminal, b"calls/s")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in {0, 1}
    before.assert_restored(target.pid)
    target.finish()
