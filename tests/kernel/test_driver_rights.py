"""Who may use the driver: the process that has opened it, as long as that may load modules and is alive."""

import ctypes
import errno
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import anyprobe
from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel.driver import layout, loading
from anyprobe.target.kernel.driver.device import Driver
from anyprobe.target.system import gateway
from support.driver import wait_until
from support.kernel_patches import Patches, call_getppid, function, text, warnings, writes_of

GETPPID = "__do_sys_getppid"
CALLS = 100
NOBODY = 65534
CLOSED = "anyprobe_test=closed"
"""Of the kernel's command line: in that guest the kernel may be closed until it ends."""
is_closed = pytest.mark.skipif(CLOSED not in Path("/proc/cmdline").read_text(), reason="only in a guest of its own")


def whole():
    body = function(GETPPID)
    return text(body[0].address, body[-1].end - body[0].address)


def fork_by_hand():
    """Fork as a library in C does: nothing of Python's is told."""
    return ctypes.PyDLL(None).fork()


def a_child_of(how):
    """Have a session with splices and shared memory; tell and wait in a child of it that does not execute anything."""
    reading, writing = os.pipe()
    controller = os.fork()
    if controller:
        os.close(writing)
        return controller, reading
    try:
        with anyprobe.kernel(mechanism="splice") as session:
            sizes = anyprobe.Hist("sizes")

            @session.entry("kernel::vfs_read")
            def entered(ctx, count):
                sizes.add(count)

            session.count(f"kernel::{GETPPID}", "kernel::vfs_write:return")
            assert not session.refused
            if how == "multiprocessing":
                context = multiprocessing.get_context("fork")
                child = context.Process(target=_tell, args=[writing, session])
                child.start()
            elif not (fork_by_hand() if how == "by hand" else os.fork()):
                _tell(writing, session if how == "fork" else None)
            signal.pause()
    finally:
        os._exit(1)


def _tell(writing, session):
    """In the child: ask the session for what it has counted, say who this is, and stay."""
    said = "nothing"
    if session is not None:
        try:
            session.snapshot()
        except anyprobe.AnyprobeError as error:
            said = str(error)
    os.write(writing, f"{os.getpid()} {said}".encode())
    signal.pause()


@pytest.mark.parametrize("how", ["fork", "multiprocessing", "by hand"])
def test_a_child_that_did_not_execute_anything_keeps_nothing_in_force(loaded, how):
    log, before = warnings(), whole()
    controller, reading = a_child_of(how)
    assert select.select([reading], [], [], 300)[0]
    child, said = os.read(reading, 400).decode().split(maxsplit=1)
    try:
        assert "is of the process that this one was forked from" in said or how == "by hand"
        with Driver() as driver:
            assert driver.live >= 3
            os.kill(controller, signal.SIGKILL)
            os.waitpid(controller, 0)
            assert driver.live == 0
            os.kill(int(child), 0)  # it is there
        assert whole() == before
    finally:
        os.kill(int(child), signal.SIGKILL)
        os.close(reading)
    call_getppid(CALLS)
    assert warnings() == log


def test_a_session_that_a_child_leaves_goes_on_in_the_parent(splicing):
    (probe,) = splicing.count(f"kernel::{GETPPID}")
    child = os.fork()
    if not child:
        try:
            splicing.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    before = sum(site.hits for site in probe.results())
    call_getppid(CALLS)
    assert sum(site.hits for site in probe.results()) - before == CALLS


def error_of(call):
    try:
        call()
    except OSError as failure:
        return failure.errno
    return 0


def refusals(fd, patches):
    """Return what each call of the driver's says to a process."""
    return {
        "info": error_of(lambda: gateway.ioctl(fd, layout.GET_INFO, bytearray(layout.INFO.size))),
        "reserve": error_of(lambda: gateway.ioctl(fd, layout.RESERVE, bytearray(layout.REGION.pack(4096, 0)))),
        "share": error_of(lambda: gateway.ioctl(fd, layout.SHARE, bytearray(layout.MEMORY.pack(4096, 0, 0)))),
        "list": error_of(lambda: gateway.ioctl(fd, layout.LIST, bytearray(layout.CHANGES.pack(0, 0, 0)))),
        "counts": error_of(lambda: gateway.ioctl(fd, layout.READ_COUNTS, bytearray(layout.COUNTS.pack(0, 8, 0)))),
        "apply": error_of(lambda: gateway.ioctl(fd, layout.APPLY, bytearray(layout.BATCH.size))),
        "patch": error_of(lambda: gateway.pwrite(fd, b"\xcc", patches)),
        "map": error_of(lambda: gateway.mmap_shared(fd, 4096)),
    }


@pytest.mark.parametrize("heir", ["root", "nobody"])
def test_an_inherited_descriptor_has_no_power(driver, patches, heir):
    driver.share(4096)
    fd, at = driver._fd, patches.start - driver.patches
    reading, writing = os.pipe()
    child = fork_by_hand()
    if not child:
        try:
            if heir == "nobody":
                os.setgroups([])
                os.setuid(NOBODY)
            os.write(writing, json.dumps(refusals(fd, at)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert set(json.loads(os.read(reading, 4096)).values()) == {errno.EPERM}
    driver.apply(writes_of(patches, [GETPPID], 1))  # it goes on here


def test_the_one_who_opened_it_and_dropped_what_it_needs(loaded):
    child = os.fork()
    if not child:
        try:
            driver = Driver()
            at = driver.reserve(4096) - driver.patches
            driver.share(4096)
            os.setgroups([])
            os.setuid(NOBODY)
            os._exit(0 if set(refusals(driver._fd, at).values()) == {errno.EPERM} else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("capabilities", "lacking"),
    [("+sys_admin", "CAP_SYS_MODULE"), ("+sys_module", "CAP_SYS_ADMIN"), ("-all", "CAP_SYS_ADMIN and CAP_SYS_MODULE")],
)
def test_both_capabilities_are_needed(loaded, capabilities, lacking):
    program = "from anyprobe.target.kernel.driver.device import Driver\nDriver()"
    bounded = f"-all,{capabilities}" if capabilities != "-all" else capabilities
    done = subprocess.run(
        ["setpriv", f"--bounding-set={bounded}", sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"this process lacks {lacking}" in done.stderr


def test_the_last_descriptor_that_is_closed_ends_the_client(driver, patches):
    """Not a copy of it, as a mapping has; but also where a child has the file still."""
    driver.share(4096)  # and gives it back
    driver.apply(writes_of(patches, [GETPPID], 1))
    copy = os.dup(driver._fd)
    child = fork_by_hand()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        os.close(copy)
        assert driver.live == 1
        driver.close()
        with Driver() as other:
            assert other.live == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_is_left_of_patches_are_breakpoints(loaded):
    with Driver() as driver:
        patches = Patches(driver)
        fresh = text(patches.start, patches.size)
        assert set(fresh) == {0xCC}
        driver.apply(writes_of(patches, [GETPPID], 1))
        assert set(text(patches.start, patches.size)) != {0xCC}
        start, size = patches.start, patches.size
    wait_until(lambda: set(text(start, size)) == {0xCC}, "nothing of the patches is left")


def test_memory_is_the_caller_s_and_holds_up_no_other_client(driver):
    """It is counted in the control group of the process, and allocated without what all others wait for."""
    group = Path("/sys/fs/cgroup/anyprobe_memory")
    size, asked = 96 << 20, 0
    Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+memory")
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        before = int((group / "memory.current").read_text())
        with Driver() as greedy:
            taking = threading.Thread(target=greedy.share, args=[size])
            taking.start()
            while taking.is_alive():
                assert driver.live == 0
                asked += 1
            taking.join()
            assert int((group / "memory.current").read_text()) - before >= size
        wait_until(lambda: int((group / "memory.current").read_text()) - before < size // 2, "it is given back")
    finally:
        Path("/sys/fs/cgroup/cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()
    assert asked > 3


def test_nothing_of_a_stop_takes_a_kprobe(loaded):
    listed = Path("/sys/kernel/debug/kprobes/blacklist").read_text().split()
    for name in ("in_stop", "write_all", "put", "is_any_inside", "has_word_inside", "unwinds_inside", "open_window"):
        assert name in listed, name


def test_text_is_written_without_a_mapping_of_the_kernel(driver, patches):
    writes = writes_of(patches, [GETPPID, "vfs_read", "vfs_write"], 4)
    with anyprobe.kernel(mechanism="kprobe") as session:
        (probe,) = session.count("kernel::vmap:entry")
        assert not probe.refused
        for _ in range(5):
            driver.apply(writes)
            driver.apply([write.undone() for write in writes])
        assert sum(site.hits for site in probe.results()) == 0


@is_closed
def test_a_kernel_that_takes_no_new_code(loaded):
    """The device does not open any more; who has it open may read and take out, and write nothing."""
    with Driver() as driver:
        patches = Patches(driver)
        write, other = writes_of(patches, ["vfs_read"], 2)
        driver.apply([write])
        for switch in ("kexec_load_disabled", "modules_disabled"):  # neither can be taken back
            (Path("/proc/sys/kernel") / switch).write_text("1")
            for refused in (lambda: driver.apply([other]), lambda: driver.write_patch(patches.start, b"\xcc"), Driver):
                with pytest.raises(KernelRefused) as caught:
                    refused()
                assert caught.value.errno == errno.EPERM
            assert f"kernel.{switch}" in loading.may_open()
            assert driver.live == 1
        driver.apply([write.undone()])
        assert driver.live == 0
