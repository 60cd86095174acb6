"""Kprobes beside splices: none becomes a jump over a branch target that only a patch knows."""

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from anyprobe.core import kept
from anyprobe.isa.decode import Flow
from anyprobe.target.kernel.driver import building, loading
from anyprobe.target.kernel.driver.device import Driver
from support.disturbances import kprobes_at
from support.driver import wait_until
from support.in_kernel import KPROBES
from support.kernel_patches import Patches, function, is_refused, jump, warnings, writes_of

SWITCH = Path("/proc/sys/debug/kprobes-optimization")
FUNCTIONS = (
    "vfs_write",
    "vfs_read",
    "ksys_write",
    "ksys_read",
    "do_sys_openat2",
    "do_filp_open",
    "pipe_write",
    "pipe_read",
)
BESIDE = "alloc_skb_with_frags"
JUMP = len(jump(0, 5))
NEAR = 32
pytestmark = pytest.mark.skipif(not SWITCH.exists(), reason="this kernel optimizes no kprobes")


@pytest.fixture
def switch():
    """Yield the switch; it is on before and after."""
    SWITCH.write_text("1")
    yield SWITCH
    SWITCH.write_text("1")


def optimized():
    """Return the places of kprobes that are jumps."""
    lines = [line.split() for line in KPROBES.read_text().splitlines()]
    return {words[2] for words in lines if "[OPTIMIZED]" in words}


def place(name, insn, body):
    return f"{name}+{insn.address - body[0].address:#x}"


def hidden_branches(patches):
    """Yield a write over a branch, and where a kprobe's jump would cover its target, in each of some functions.

    No other branch leads there, so only that one keeps the kernel from making the kprobe a jump.
    """
    for name in FUNCTIONS:
        body = function(name)
        branches = [insn for insn in body if insn.flow in (Flow.JUMP, Flow.JCC) and insn.target is not None]
        for branch in branches:
            if branch.end - branch.address < JUMP or branch is body[0]:
                continue
            over = [
                insn
                for insn in body
                if insn.address < branch.target < insn.address + JUMP
                and abs(insn.address - branch.address) > NEAR
                and sum(insn.address < each.target < insn.address + JUMP for each in branches) == 1
            ]
            made = patches.counting(body, body.index(branch)) if over else None
            if made is not None and not is_refused(patches.driver, made.write):
                yield made, [place(name, insn, body) for insn in over]


def beside():
    """Return a place in the middle of a function that is not spliced, where a kprobe becomes a jump."""
    body = function(BESIDE)
    return [place(BESIDE, insn, body) for insn in body[4:30]]


def write_and_read():
    """Have files and pipes written and read, with results that are checked."""
    reading, writing = os.pipe()
    with open("/run/tmp/guarded", "w+b", buffering=0) as file:
        for number in range(200):
            line = f"{number:04}\n".encode()
            assert os.write(writing, line) == file.write(line) == len(line)
            assert os.read(reading, 100) == line
        file.seek(0)
        assert file.read().splitlines()[-1] == b"0199"
    os.close(reading)
    os.close(writing)


def test_the_switch_written_in_a_loop_while_kprobes_come_and_go_beside_splices(driver, patches, switch):
    """The kernel would make jumps of them within a moment of each 1 that is written, and the next call would crash."""
    found = list(hidden_branches(patches))
    assert found
    driver.apply([made.write for made, _ in found])
    ended = threading.Event()

    def write_the_switch():
        while not ended.is_set():
            for value in "01":
                switch.write_text(value)

    writing = threading.Thread(target=write_the_switch)
    writing.start()
    covering = [each for _, places in found for each in places][:24]
    taken = 0
    try:
        for _ in range(2):
            with kprobes_at(*covering) as there:
                taken += len(there)
                write_and_read()
                assert optimized().isdisjoint(there)
    finally:
        ended.set()
        writing.join(600)
    assert taken
    switch.write_text("0")
    with ExitStack() as stack:
        there = stack.enter_context(kprobes_at(*covering))
        others = stack.enter_context(kprobes_at(*beside()[:1]))
        switch.write_text("1")
        wait_until(lambda: optimized() >= set(others), "a kprobe elsewhere is a jump")
        write_and_read()
        assert optimized().isdisjoint(there)
        driver.apply([made.write.undone() for made, _ in found if not has_kprobe(made.write, there)])
        write_and_read()
        for value in "01":  # what was found while splices were there holds as long as the kprobe is set
            switch.write_text(value)
        wait_until(lambda: optimized() >= set(others), "a kprobe elsewhere is a jump")
        assert optimized().isdisjoint(there)
        write_and_read()


def has_kprobe(write, places):
    """Return whether one of the places is what was written."""
    starts = {name: function(name)[0].address for name in FUNCTIONS}
    at = {starts[name] + int(offset, 16) for name, _, offset in (each.partition("+") for each in places)}
    return any(write.address <= each < write.address + len(write.old) for each in at)


def test_a_kprobe_that_was_a_jump_before_stays_one(driver, patches, switch):
    body = function("vfs_read")
    writes = writes_of(patches, ["vfs_read"], 8)
    far = [insn for insn in body[4:] if all(abs(insn.address - each.address) > 2 * NEAR for each in writes[-2:])]
    places = [place("vfs_read", insn, body) for insn in far]
    for one in places:
        with kprobes_at(one) as there:
            if not there:
                continue
            switch.write_text("0")
            switch.write_text("1")
            if not optimized():
                continue
            driver.apply(writes[-2:])
            write_and_read()
            assert optimized() == {one}
            driver.apply([write.undone() for write in writes[-2:]])
            assert optimized() == {one}
            return
    pytest.skip("no kprobe of this function becomes a jump")


@pytest.mark.parametrize("own", ["0", "1"])
@pytest.mark.parametrize("unloaded", [False, True])
def test_the_switch_is_the_administrator_s(loaded, switch, own, unloaded):
    """A kprobe between what was written, the end of the session, and that of the driver change nothing of it."""
    before = warnings()
    with Driver() as driver:
        driver.apply(writes_of(Patches(driver), ["vfs_read", "tcp_sendmsg_locked"], 1))
        assert driver.live == 2
        assert switch.read_text() == "1\n"
        switch.write_text(own)
        with kprobes_at(*beside()[:1]):
            assert switch.read_text() == f"{own}\n"
            driver.close()
            assert switch.read_text() == f"{own}\n"
            if unloaded:
                loading.unload()
    assert switch.read_text() == f"{own}\n"
    if unloaded:
        release = building.running_release()
        loading.load(building.build(release, f"{kept.directory()}/driver"))
    assert warnings() == before


def test_the_command_that_switches_is_refused_while_splices_are_in_force(driver, patches, switch):
    def optimize(*arguments):
        command = [sys.executable, "-m", "anyprobe", "optimize", *arguments, "--kernel"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    driver.apply(writes_of(patches, ["vfs_read"], 1))
    refused = optimize("on")
    assert refused.returncode == 1
    assert "1 splice is in force in the kernel's text" in refused.stderr
    assert optimize("off").returncode == 0
    assert switch.read_text() == "0\n"
    driver.close()
    assert optimize("on").returncode == 0
    assert switch.read_text() == "1\n"


def test_what_guards_cannot_be_switched_off(loaded):
    tracing = Path("/proc/sys/kernel/ftrace_enabled")
    with pytest.raises(OSError, match="busy"):
        tracing.write_text("0")
    assert tracing.read_text() == "1\n"
