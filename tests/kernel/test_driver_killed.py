"""A controller of splices that is killed at every call that it makes to the kernel, and at any moment between."""

import os
import random
import signal
import time

import pytest

import anyprobe
from anyprobe.target.kernel.driver.device import Driver
from anyprobe.target.kernel.driver.layout import Write
from support.in_kernel import calls_of, in_child, was_killed
from support.kernel_patches import Patches, call_getppid, function, text, warnings, writes_of

GETPPID = "__do_sys_getppid"
SPECS = f"kernel::{GETPPID}", "kernel::vfs_read:entry", "kernel::vfs_read:return"
CALLS = "open_file", "ioctl", "pwrite", "mmap_shared", "close"
TIMES = 30
_known: list[Write] = []
"""What the driver accepts."""


def whole_session():
    """Splice, read, remove one, splice again and end."""
    with anyprobe.kernel(mechanism="splice") as session:
        probes = session.count(*SPECS)
        assert not any(probe.refused for probe in probes)
        session.snapshot()
        session.remove(probes[0])
        session.count(SPECS[0])


def whole_client():
    """Use each request of the driver."""
    with Driver() as driver:
        patches = Patches(driver)
        driver.share(4096)
        made = patches.again(_known)
        driver.apply(made)
        driver.changes()
        patches.count(0)
        driver.apply([write.undone() for write in made])
        driver.apply(made)


@pytest.fixture(scope="module")
def watched(loaded):
    """Return the text that is written by these tests, as it was before; let them know what can be written there."""
    with Driver() as driver:
        _known[:] = writes_of(Patches(driver), [GETPPID, "vfs_read", "vfs_write"], 4)
    assert len(_known) >= 6
    return {name: whole(name) for name in (GETPPID, "vfs_read", "vfs_write")}


def whole(name):
    body = function(name)
    return text(body[0].address, body[-1].end - body[0].address)


@pytest.mark.parametrize("kind", ["kill-before", "kill-after"])
@pytest.mark.parametrize(
    "work",
    [
        whole_client,
        pytest.param(whole_session, marks=[pytest.mark.thorough, pytest.mark.torture, pytest.mark.timeout(3600)]),
    ],
    ids=["client", "session"],
)
def test_killed_at_a_call(watched, work, kind):
    before = warnings()
    work()  # what is analysed is kept, also for the children
    told = in_child(work)
    assert set(told) == {"log", "status"}, told
    calls = calls_of(told["log"], *CALLS)
    assert set(calls.values()) >= {"open_file", "ioctl", "pwrite", "close"}
    for position, what in calls.items():
        assert was_killed(in_child(work, f"{kind}:{position}")), (position, what)
        assert {name: whole(name) for name in watched} == watched, (position, what)
        with Driver() as driver:
            assert driver.live == 0, (position, what)
    call_getppid(10)
    assert warnings() == before
    print(f"{kind}: {len(calls)} calls")


def test_killed_at_any_moment_the_text_is_whole_or_as_before(watched):
    chance = random.Random(28)
    before, seen = warnings(), set()
    for _ in range(TIMES):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                driver = Driver()
                made = Patches(driver).again(_known)
                os.write(writing, bytes([len(made)]))
                while True:
                    driver.apply(made)
                    driver.apply([write.undone() for write in made])
            finally:
                os._exit(1)
        os.close(writing)
        number = os.read(reading, 1)[0]
        os.close(reading)
        until = time.monotonic() + chance.random() / 5
        with Driver() as other:
            while time.monotonic() < until:
                seen.add(other.live)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            assert seen <= {0, number}
            assert other.live == 0
        assert {name: whole(name) for name in watched} == watched
    assert len(seen) == 2
    assert warnings() == before
