"""BPF's tests of uprobes: consumers, races, every register, many sites."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import anyprobe
from anyprobe import emit
from anyprobe.core.errors import SessionConflict
from anyprobe.kprobes import (
    Kprobe,
    Kretprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    unregister_kprobe,
    unregister_kprobes,
    unregister_kretprobe,
)
from anyprobe.probes.providers.function.outside import listing
from support import consumers
from support.driver import build, started
from support.image import Image
from support.many_functions import many_functions

pytestmark = pytest.mark.live
STATUS = 0x8D5
NAMES = ("ax", "bx", "cx", "dx", "si", "di", "bp", *(f"r{n}" for n in range(8, 16)))
PATTERNS = [(number + 1) * 0x0101010101010101 for number in range(15)]
RETURNED = 0x1111111111111111
SLICE = 5
"""Every so many combinations of consumers are tried: each set before, each set after; all in the torture tests."""
RACE = 0.5
"""Seconds, as in the original."""


def selftests(*arguments):
    return started(build("selftests.c", "-O2", "-pthread"), *arguments)


def words(row):
    return [int(row[name]) for name in NAMES]


def pre(p, regs):
    emit(
        "entry", ax=regs.ax, bx=regs.bx, cx=regs.cx, dx=regs.dx, si=regs.si, di=regs.di, bp=regs.bp, r8=regs.r8,
        r9=regs.r9, r10=regs.r10, r11=regs.r11, r12=regs.r12, r13=regs.r13, r14=regs.r14, r15=regs.r15, sp=regs.sp,
        flags=regs.flags, ip=regs.ip,
    )  # fmt: skip
    return 0


def leaving(ri, regs):
    emit(
        "return", ax=regs.ax, bx=regs.bx, cx=regs.cx, dx=regs.dx, si=regs.si, di=regs.di, bp=regs.bp, r8=regs.r8,
        r9=regs.r9, r10=regs.r10, r11=regs.r11, r12=regs.r12, r13=regs.r13, r14=regs.r14, r15=regs.r15, sp=regs.sp,
        flags=regs.flags, ip=regs.ip,
    )  # fmt: skip


@pytest.mark.parametrize("strategy", ["auto", "trap"])
def test_uprobe_regs_equal(strategy):
    """All registers are as before, and the handler sees just these; status flags all clear and all set."""
    with selftests() as target, anyprobe.attach(target.pid, strategy=strategy) as session:
        kp = Kprobe(symbol_name="leaf", pre_handler=pre)
        assert register_kprobe(kp) == 0
        counts = target.go(1)
        target.finish()
        rows = session.records(final=True)["entry"]
        assert [words(row) for row in rows] == [PATTERNS] * 2
        assert [int(row["flags"]) & STATUS for row in rows] == [0, STATUS]
        assert {int(row["ip"]) for row in rows} == {kp.addr}
        assert (counts.calls["changed"], counts.calls["wrong"]) == (0, 0)


@pytest.mark.parametrize("strategy", ["auto", "trap"])
def test_uretprobe_regs_equal(strategy):
    """The same at the return, but for the value; the stack pointer is where the return address is."""
    with selftests() as target, anyprobe.attach(target.pid, strategy=strategy) as session:
        assert register_kretprobe(Kretprobe(Kprobe(symbol_name="leaf"), leaving)) == 0
        assert register_kprobe(Kprobe(symbol_name="leaf", pre_handler=pre)) == 0
        counts = target.go(1)
        target.finish()
        records = session.records(final=True)
        rows = records["return"]
        assert [words(row) for row in rows] == [[RETURNED, *PATTERNS[1:]]] * 2
        assert [int(row["flags"]) & STATUS for row in rows] == [0, STATUS]
        assert rows["sp"].tolist() == records["entry"]["sp"].tolist()
        (around,), _ = session.resolve("a.out:around")
        assert all(0 < int(row["ip"]) - around.address < around.function.size for row in rows)
        assert (counts.calls["changed"], counts.calls["wrong"]) == (0, 0)


def test_uretprobe_regs_change():
    """A handler at the return writes three registers, and only these change."""

    def change(ri, regs):
        regs.ax = 0x5151
        regs.cx = 0x5151
        regs.r11 = 0x5151

    with selftests() as target, anyprobe.attach(target.pid, unsafe=True):
        rp = Kretprobe(Kprobe(symbol_name="leaf"), change)
        assert register_kretprobe(rp) == 0, rp.kp.error
        counts = target.go(1)
        changed = sum(1 << NAMES.index(name) for name in ("ax", "cx", "r11"))
        assert (counts.calls["changed"], counts.calls["wrong"]) == (changed, 0)
        unregister_kretprobe(rp)
        target.go(1)
        target.finish()


def test_consumers_come_and_go_inside_a_call():
    with selftests("inside") as target, anyprobe.attach(target.pid):
        consumers.check(target, consumers.COMBINATIONS[::SLICE])
        target.finish()


RACER = """
import sys, time, anyprobe
from anyprobe.core.errors import SessionConflict, StopTimeout
from anyprobe.kprobes import *
end, done, refused = time.monotonic() + float(sys.argv[2]), 0, 0
while time.monotonic() < end or not done:
    try:
        with anyprobe.attach(int(sys.argv[1]), strict=True) as session:
            kp, rp = Kprobe(symbol_name="triggered"), Kretprobe(Kprobe(symbol_name="triggered"), lambda ri, regs: 0)
            register_kprobe(kp)
            register_kretprobe(rp)
            unregister_kprobe(kp)
        done += 1
    except (SessionConflict, StopTimeout):  # a busy machine may let a thread wait for long
        refused += 1
print(done, refused)
"""


def test_uprobe_race_within_a_session():
    """Threads trigger while probes are registered and unregistered; one that stays counts every call."""
    with selftests("races") as target, anyprobe.attach(target.pid):
        kept = Kprobe(symbol_name="triggered")
        assert register_kprobe(kept) == 0
        target.run_freely()
        end, rounds = time.monotonic() + RACE, 0
        while time.monotonic() < end or rounds < 3:
            kp = Kprobe(symbol_name="triggered")
            rp = Kretprobe(Kprobe(symbol_name="triggered"), lambda ri, regs: 0)
            assert register_kprobe(kp) == register_kretprobe(rp) == 0
            unregister_kretprobe(rp)
            assert kp.hits <= kept.hits
            unregister_kprobe(kp)
            rounds += 1
        counts = target.halt()
        assert kept.hits == counts.calls["triggered"]
        target.finish()


def test_uprobe_race_between_sessions(tmp_path):
    """Controllers that come and go at the same time, as threads trigger: typed conflicts, and nothing is left."""
    script = tmp_path / "racer.py"
    script.write_text(RACER)
    with selftests("races") as target:
        image = Image.of(target.pid)
        target.run_freely()
        command = [sys.executable, str(script), str(target.pid), str(RACE)]
        racers = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
        ]
        ends = [racer.communicate(timeout=180) for racer in racers]
        assert [racer.returncode for racer in racers] == [0, 0], ends
        assert sum(int(out.split()[0]) for out, _ in ends) > 0
        target.halt()
        image.assert_restored(target.pid)
        assert listing.inspect(target.pid).registered == []
        assert "memfd:anyprobe" not in Path(f"/proc/{target.pid}/maps").read_text()
        target.finish()


def test_two_thousand_sites_are_attached_and_detached():
    """A slice of BPF's 50,000, which are in the torture tests."""
    number = 2000
    with started(many_functions(number)) as target:
        image = Image.of(target.pid)
        with anyprobe.attach(target.pid) as session:
            probes = [Kprobe(symbol_name=f"many_{n}") for n in range(number)]
            assert register_kprobes(probes) == 0
            assert len(listing.inspect(target.pid).registered) == number
            target.go(2)
            assert {kp.hits for kp in probes} == {2}
            unregister_kprobes(probes)
            assert session.process.pid == target.pid
            target.go(1)
        image.assert_restored(target.pid)
        target.finish()


def test_one_session_at_a_time():
    """What the races meet: a living session is not disturbed."""
    with selftests() as target, anyprobe.attach(target.pid):
        assert register_kprobe(Kprobe(symbol_name="leaf")) == 0
        with pytest.raises(SessionConflict), anyprobe.attach(target.pid, strict=True) as other:
            register_kprobe(Kprobe(symbol_name="leaf"), session=other)
        target.go(1)
        target.finish()
