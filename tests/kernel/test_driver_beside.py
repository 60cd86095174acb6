"""Splices beside what else changes the kernel's text: all goes on, every call is counted, no warning is in the log."""

import errno
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

import anyprobe
from anyprobe.isa.decode import decode_range
from anyprobe.target.kernel import symbols
from anyprobe.target.kernel.driver.device import BatchRefused, Driver
from anyprobe.target.kernel.driver.layout import Verdict
from support import guest_driver
from support.disturbances import TRACING, define, flip_keys, live_patched, set_to, trace_all
from support.driver import wait_until
from support.kernel_patches import Patches, call_getppid, function, is_refused, text, writes_of

GETPPID = "__do_sys_getppid"
CALLS = 3000
GROUPS = Path("/sys/fs/cgroup")
WITH_KEYS = (
    "__schedule", "try_to_wake_up", "enqueue_task_fair", "dequeue_task_fair", "update_curr",
    "finish_task_switch.isra.0",
    "tcp_sendmsg_locked", "tcp_recvmsg", "__netif_receive_skb_core.constprop.0", "ip_rcv", "__dev_queue_xmit",
)  # fmt: skip


@pytest.fixture
def armed(driver, patches):
    """Arm places in functions with static keys, and one whose count is known; return the writes."""
    places = [name for name in WITH_KEYS if symbols.running().named(name)]
    writes = writes_of(patches, places, 5)
    assert len(writes) >= 30
    driver.apply(writes)
    return writes


@pytest.fixture
def counted(driver, patches):
    """Arm a place of getppid; return what it has counted since it was armed."""
    made = first_of(patches)
    driver.apply([made.write])
    return lambda: patches.count(made.slot)


def first_of(patches, name=GETPPID, start=3):
    """Return the first place of a function, with its counter, that the driver accepts."""
    body = function(name)
    for index in range(start, len(body)):
        made = patches.counting(body, index)
        if made is not None and not made.fixups and not is_refused(patches.driver, made.write):
            return made
    raise AssertionError(name)


def work():
    """Have the scheduler, pipes and the loopback do something, with results that are checked."""
    reading, writing = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            for number in range(20):
                os.write(writing, bytes([number]))
                client.sendall(os.read(reading, 1))
                assert peer.recv(1) == bytes([number])
    os.close(reading)
    os.close(writing)


def test_static_keys_that_flip_while_neighbours_are_armed(armed, counted):
    flipped = flip_keys(work)
    assert flipped >= 10
    before = counted()
    call_getppid(CALLS)
    assert counted() - before == CALLS
    assert [text(write.address, len(write.new)) for write in armed] == [write.new for write in armed]


def test_modules_that_come_and_go(driver, armed, counted):
    before = counted()
    for _ in range(3):
        for module in ("loop", "dummy"):
            subprocess.run(["modprobe", module], check=True)
        call_getppid(CALLS)
        for module in ("dummy", "loop"):
            subprocess.run(["modprobe", "-r", module], check=True)
    assert counted() - before == 3 * CALLS
    assert driver.live == len(armed) + 1


def test_the_text_of_a_module_s_start_is_not_written(driver, patches):
    """It is still there when the module is live, and goes before that does."""
    module = guest_driver.module("in_between", os.uname().release)
    if not module.exists():
        pytest.skip("no such module for this kernel")
    folder = Path("/sys/module/in_between")
    inserting = subprocess.Popen(["insmod", module])
    try:
        wait_until(lambda: folder.exists() and (folder / "initstate").read_text() == "live\n", "the module is live")
        lines = Path("/proc/kallsyms").read_text().splitlines()
        (start,) = (int(line.split()[0], 16) for line in lines if line.endswith(" in_between_init\t[in_between]"))
        body = decode_range(text(start, 48), start)
        made = next(filter(None, (patches.counting(body, index) for index in range(1, len(body)))))
        with pytest.raises(BatchRefused) as caught:
            driver.apply([made.write])
        assert (caught.value.errno, caught.value.verdict) == (errno.EFAULT, Verdict.NOT_TEXT)
    finally:
        (folder / "parameters/go").write_text("Y")
        inserting.wait(60)
        subprocess.run(["rmmod", "in_between"], check=True)


def test_processors_that_go_off_and_on(armed, counted):
    online = Path("/sys/devices/system/cpu/cpu1/online")
    if not online.exists():
        pytest.skip("one processor")
    before = counted()
    ended = threading.Event()
    busy = threading.Thread(target=lambda: [work() for _ in iter(ended.is_set, True)])
    busy.start()
    try:
        for _ in range(3):
            online.write_text("0")
            call_getppid(CALLS)
            online.write_text("1")
            call_getppid(CALLS)
    finally:
        ended.set()
        busy.join(60)
        set_to(online, "1")
    assert counted() - before == 6 * CALLS


@pytest.mark.thorough
def test_all_functions_traced(armed, counted):
    before = counted()

    def both():
        call_getppid(CALLS)
        work()

    trace_all(both)
    assert counted() - before == 2 * CALLS
    assert [text(write.address, len(write.new)) for write in armed] == [write.new for write in armed]


@pytest.mark.thorough
def test_arming_while_all_functions_are_traced(driver, patches):
    (TRACING / "set_ftrace_filter").write_text("vfs_*\n*getppid*\nschedule*\n")
    tracer = TRACING / "current_tracer"
    try:
        tracer.write_text("function")
        made = first_of(patches)
        driver.apply([made.write])
        call_getppid(CALLS)
        tracer.write_text("nop")
        call_getppid(CALLS)
    finally:
        tracer.write_text("nop")
        (TRACING / "set_ftrace_filter").write_text("\n")
    assert patches.count(made.slot) == 2 * CALLS


@pytest.mark.thorough
@pytest.mark.parametrize("mechanism", ["fentry", "kprobe"])
@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_another_probe_of_the_same_function(driver, patches, mechanism, first):
    made = first_of(patches)
    if first == "ours":
        driver.apply([made.write])
    with anyprobe.kernel(mechanism=mechanism) as session:
        probes = session.count(f"kernel::{GETPPID}:entry", f"kernel::{GETPPID}:return")
        if first == "theirs":
            driver.apply([made.write])
        before = patches.count(made.slot)
        call_getppid(CALLS)
        assert [sum(site.hits for site in probe.results()) for probe in probes] == [CALLS, CALLS]
        assert patches.count(made.slot) - before == CALLS
        if first == "theirs":
            driver.apply([made.write.undone()])
            call_getppid(CALLS)
            assert [sum(site.hits for site in probe.results()) for probe in probes] == [2 * CALLS, 2 * CALLS]
    if first == "ours":
        call_getppid(CALLS)
        assert patches.count(made.slot) - before == 2 * CALLS


@pytest.mark.thorough
def test_a_kprobe_earlier_in_the_function_hides_no_boundary(driver, patches):
    body = function("vfs_read")
    *_, written = writes_of(patches, ["vfs_read"], 20)
    assert written.address - body[0].address > 64
    for insn in body[4:12]:
        if insn.end > written.address - 20 or not insn.falls_through:
            break
        with anyprobe.kernel(mechanism="kprobe") as session:
            (probe,) = session.count(f"kernel::vfs_read:{insn.address - body[0].address:#x}")
            if probe.refused:
                continue
            assert not is_refused(driver, written), insn.text


def test_a_kprobe_that_is_switched_off_keeps_what_it_has_copied(driver):
    before = text(function(GETPPID)[0].address, 64)
    enable = TRACING / "events/anyprobe_test/on_top/enable"
    try:
        with Driver() as other:
            made = first_of(Patches(other))
            other.apply([made.write])
            define(f"p:anyprobe_test/on_top {GETPPID}+{made.write.address - function(GETPPID)[0].address}")
            enable.write_text("1")
            call_getppid(10)
            enable.write_text("0")  # disarmed, but its copy of the jump is kept
            with pytest.raises(BatchRefused) as caught:
                other.apply([made.write.undone()])
            assert (caught.value.errno, caught.value.verdict) == (errno.EPERM, Verdict.KPROBE)
        assert driver.live == 1, "the kprobe would still jump to the patch"
        enable.write_text("1")
        call_getppid(CALLS)
    finally:
        set_to(enable, "0")
        define("-:anyprobe_test/on_top")
    wait_until(lambda: driver.live == 0, "what the kprobe kept is taken out")
    assert text(function(GETPPID)[0].address, 64) == before
    call_getppid(10)


def test_suspend_is_refused_while_something_is_written(driver, counted):
    state = Path("/sys/power/state")
    if not state.exists() or "freeze" not in state.read_text():
        pytest.skip("this kernel does not suspend")
    with pytest.raises(OSError, match="busy") as caught:
        state.write_text("freeze")
    assert caught.value.errno == errno.EBUSY
    before = counted()
    call_getppid(CALLS)
    assert counted() - before == CALLS


@pytest.mark.thorough
def test_a_live_patch_that_comes_and_goes(driver, patches, counted):
    module = guest_driver.module("live_patch", os.uname().release)
    if not module.exists():
        pytest.skip("no live patch for this kernel")
    made = first_of(patches, "cmdline_proc_show")
    driver.apply([made.write])
    line = Path("/proc/cmdline")
    plain, before = line.read_text(), counted()
    assert patches.count(made.slot) == 1
    with live_patched(module):
        call_getppid(CALLS)
        now = patches.count(made.slot)  # insmod has read it as well
        assert line.read_text() == "live patched\n"
        assert patches.count(made.slot) == now, "the function that was patched does not run"
    call_getppid(CALLS)
    now = patches.count(made.slot)
    assert line.read_text() == plain
    assert patches.count(made.slot) == now + 1
    assert counted() - before == 2 * CALLS


@pytest.fixture
def used_up():
    """Have tasks that want to run, in a group that has used up its time."""
    group = GROUPS / "anyprobe_test"
    (GROUPS / "cgroup.subtree_control").write_text("+cpu")
    group.mkdir()
    busy = []
    try:
        (group / "cpu.max").write_text("1000 1000000")
        for _ in range(3):
            busy.append(subprocess.Popen(["sh", "-c", "while :; do :; done"]))
            (group / "cgroup.procs").write_text(str(busy[-1].pid))
        wait_until(lambda: "nr_throttled 0\n" not in (group / "cpu.stat").read_text(), "they have used up their time")
        yield
    finally:
        (group / "cpu.max").write_text("max")  # they need some to end
        for each in busy:
            each.kill()
        for each in busy:
            each.wait(60)
        group.rmdir()


@pytest.mark.thorough
def test_tasks_whose_time_is_used_up_hold_up_nothing(driver, patches, used_up):
    """They want to run and are on no run queue; on kernels that preempt it is counted who is."""
    body = function("vfs_read")
    found = (patches.counting(body, index) for index in range(3, len(body)))
    write = next(made.write for made in found if made and made.write.boundaries and not is_refused(driver, made.write))
    for _ in range(5):
        driver.apply([write], tries=50)
        driver.apply([write.undone()])


@pytest.mark.thorough
def test_batches_while_threads_end(driver, patches):
    made = first_of(patches)
    ended = threading.Event()

    def short_threads():
        while not ended.is_set():
            several = [threading.Thread(target=call_getppid, args=[1]) for _ in range(8)]
            for each in several:
                each.start()
            for each in several:
                each.join(60)

    busy = threading.Thread(target=short_threads)
    busy.start()
    try:
        for _ in range(200):
            driver.apply([made.write])
            driver.apply([made.write.undone()])
    finally:
        ended.set()
        busy.join(60)
    before = patches.count(made.slot)
    driver.apply([made.write])
    call_getppid(CALLS)
    assert patches.count(made.slot) - before == CALLS
