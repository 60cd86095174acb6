"""Refused splices of which only the running kernel tells: each reason happens, by name, and nothing is written."""

import ctypes
import fcntl
import mmap
import os
import queue
import select
import struct
import threading
from contextlib import contextmanager
from itertools import pairwise

import pytest

import anyprobe
from anyprobe import Reason
from support import splice_refusals
from support.kernel_patches import call_getppid, fixups, function, text

GETPPID = "__do_sys_getppid"
WARNING = "do_task_dead", "d_instantiate", "d_walk", "filemap_remove_folio", "free_iova"
JUMP, UD2 = 5, b"\x0f\x0b"
PATIENCE = 60
GETDENTS, USERFAULTFD = 217, 323
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04
UFFDIO_REGISTER_MODE_MISSING = 1


@pytest.fixture
def session(splicing):
    return splicing


def refused(session, *specs):
    """Return why places are refused; nothing is armed."""
    probes = session.count(*specs)
    assert not any(probe.armed for probe in probes)
    return [why for probe in probes for _, why in probe.refused]


def what_must_not_be_instrumented(session, _):
    return refused(session, "kernel::exc_page_fault", "kernel::exc_nmi", "kernel::multi_cpu_stop")


def where_a_kprobe_is(session, _):
    body = function(GETPPID)
    spec = f"kernel::{GETPPID}:{body[2].address - body[0].address:#x}"
    with anyprobe.kernel(mechanism="kprobe") as other:
        (set_there,) = other.count(spec)
        found = refused(session, spec)
        call_getppid(10)
        assert sum(site.hits for site in set_there.results()) == 10
    return found


def warnings(session, _):
    """Return why the traps of warnings are refused that have room for a jump."""
    specs = []
    for name in WARNING:
        body = function(name)
        specs += [f"kernel::{name}:{insn.address - body[0].address:#x}" for insn in body if insn.raw == UD2]
    # those without room are counted where control comes from
    probes = session.count(*specs)
    return [why for probe in probes for _, why in probe.refused if why.reason is Reason.BUG]


@contextmanager
def asleep_in_a_store(folder):
    """Have a thread wait for a page in the second store to a directory's entry, of which the first store is done."""
    libc = ctypes.CDLL(None, use_errno=True)
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    memory[mmap.PAGESIZE] = 1
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    faults = libc.syscall(USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)
    assert faults >= 0, os.strerror(ctypes.get_errno())
    fcntl.ioctl(faults, UFFDIO_API, struct.pack("<3Q", 0xAA, 0, 0))
    fcntl.ioctl(faults, UFFDIO_REGISTER, struct.pack("<4Q", start, mmap.PAGESIZE, UFFDIO_REGISTER_MODE_MISSING, 0))
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    results = queue.SimpleQueue()

    def read_entries():
        # the offset that is stored first is in the page that is there, the number before it in the other one
        results.put(libc.syscall(GETDENTS, directory, ctypes.c_void_p(start + mmap.PAGESIZE - 8), mmap.PAGESIZE))

    thread = threading.Thread(target=read_entries)
    thread.start()
    assert select.select([faults], [], [], PATIENCE)[0], "nobody waits for the page"
    try:
        yield
    finally:
        fcntl.ioctl(faults, UFFDIO_ZEROPAGE, struct.pack("<4Q", start, mmap.PAGESIZE, 0, 0))
        assert results.get(timeout=PATIENCE) > 0
        thread.join()
        os.close(directory)
        os.close(faults)


def where_a_task_sleeps(session, folder):
    body, stores = function("filldir64"), fixups()
    first, second = next(
        pair for pair in pairwise(body) if all(insn.address in stores for insn in pair) and pair[0].length < JUMP
    )
    spec = f"kernel::filldir64:{first.address - body[0].address:#x}"
    before = text(first.address, second.end - first.address)
    with asleep_in_a_store(folder):
        found = refused(session, spec)
        assert text(first.address, len(before)) == before
    (probe,) = session.count(spec)
    assert probe.armed, probe.refused
    os.listdir(folder)
    assert sum(site.hits for site in probe.results()) >= 1
    session.remove(probe)
    assert text(first.address, len(before)) == before
    return found


CASES = {
    Reason.NO_INSTRUMENTATION: (what_must_not_be_instrumented, "entry code, code without instrumentation"),
    Reason.KPROBE: (where_a_kprobe_is, "a kprobe is there"),
    Reason.BUG: (warnings, "BUG or WARN"),
    Reason.TASK_INSIDE: (where_a_task_sleeps, "a task is between the instructions"),
}


@pytest.mark.parametrize("reason", splice_refusals.IN_GUESTS)
def test_what_the_kernel_refuses_is_told_by_name(session, reason, tmp_path):
    case, said = CASES[reason]
    found = case(session, tmp_path)
    assert found
    assert {why.reason for why in found} == {reason}
    assert all(said in why.detail for why in found), found
