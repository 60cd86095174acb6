"""Addresses that programs pass are read as the program's memory: the kernel's own are not followed for them."""

import ctypes
import errno
import json
import mmap
import os
import struct
import sys

import pytest

import anyprobe
from anyprobe import Count, cstr, i8, i32, ptr, u64
from anyprobe.cli import main
from anyprobe.target.kernel import symbols

LIBC = ctypes.CDLL(None, use_errno=True)
ENDING = b"/a/path/of/a/program"


def open_each(kernel):
    """Open a path of the program's, one of the kernel's memory, one that is nowhere, and one up to a page's end."""
    page = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    assert LIBC.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    near_end = start + mmap.PAGESIZE - len(ENDING) - 1
    ctypes.memmove(near_end, ENDING + b"\0", len(ENDING) + 1)
    said = []
    for address in (near_end, kernel, 8):
        assert LIBC.open(ctypes.c_void_p(address), 0) == -1
        said.append(ctypes.get_errno())
    assert said == [errno.ENOENT, errno.EFAULT, errno.EFAULT]


def read_into(kernel):
    """Ask for reads whose array of places is the program's, and has an address of the kernel in it."""
    reading, writing = os.pipe()
    os.write(writing, b"x")
    vector = ctypes.create_string_buffer(struct.pack("<QQ", kernel, 8))
    assert LIBC.readv(reading, vector, 1) == -1
    assert ctypes.get_errno() == errno.EFAULT
    assert LIBC.readv(reading, ctypes.c_void_p(kernel), 1) == -1
    os.close(reading)
    os.close(writing)


@pytest.fixture(params=[None, "kprobe", "splice"])
def session(request):
    """Open a session by each mechanism that reads memory, for what this process does."""
    if request.param == "splice":
        request.getfixturevalue("loaded")
    with anyprobe.kernel(mechanism=request.param, pids=[os.getpid()]) as opened:
        yield opened


def texts(session, name):
    """Return the texts that an aggregation has counted, and how many could not be read."""
    found = session.snapshot()
    return {key[0] for key in found.aggregation(name).entries}, sum(found.missing.values())


def is_of_the_program(seen):
    """Return whether texts have the program's path, and nothing of the kernel's memory."""
    return ENDING.decode() in seen and not any(str(each).startswith("Linux version") for each in seen)


def test_texts_of_system_calls(session):
    names = Count("names", by=("name",))

    @session.entry("syscall::openat")
    def opened(ctx, filename):
        names.add(key=(cstr(filename, 48),))

    assert not session.refused
    open_each(symbols.running().data("linux_banner"))
    names_seen, missing = texts(session, "names")
    assert is_of_the_program(names_seen)
    assert missing >= 2


def test_an_annotation_and_a_cast_change_nothing_of_it(session):
    names, casts = Count("names", by=("name",)), Count("casts", by=("name",))

    @session.entry("kernel::do_sys_openat2")
    def opened(ctx, dfd: i32, filename: ptr[i8]):
        names.add(key=(cstr(filename, 48),))
        casts.add(key=(ptr[u64](filename)[0],))

    assert not session.refused
    open_each(symbols.running().data("linux_banner"))
    names_seen, missing = texts(session, "names")
    assert is_of_the_program(names_seen)
    assert missing >= 4
    assert int.from_bytes(b"Linux ve", "little") not in texts(session, "casts")[0]


def test_as_a_number_it_leads_to_the_program_s_memory_too(session):
    names, kept, pages = Count("names", by=("name",)), Count("kept", by=("name",)), Count("pages", by=("low",))

    @session.call("kernel::do_sys_openat2")
    def opened(ctx, dfd: i32, filename: u64):
        pages.add(key=(filename % 4096,))
        ctx.data.filename = filename
        names.add(key=(cstr(filename + 0, 48),))

    @opened.ret
    def left(ctx):
        kept.add(key=(cstr(ctx.data.filename, 48),))

    assert not session.refused
    open_each(symbols.running().data("linux_banner"))
    for name in ("names", "kept"):
        assert is_of_the_program(texts(session, name)[0]), name
    assert 8 in texts(session, "pages")[0]  # of the address as it is, which is nowhere


def traced(tmp_path, spec, printed):
    """Return the lines of a trace of a program that opens a path, what is nowhere, and an address of the kernel."""
    file = tmp_path / "out"
    program = (
        "import ctypes; opens = ctypes.CDLL(None).open; opens(" + repr(ENDING) + ", 0)\n"
        f"for address in (8, {symbols.running().data('linux_banner')}): opens(ctypes.c_void_p(address), 0)"
    )
    command = ["trace", spec, "--print", printed, "--json", "--quiet", "-o", str(file)]
    assert main([*command, "--", sys.executable, "-S", "-c", program]) == 0
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("spec", ["syscall::openat", "kernel::do_sys_openat2"])
@pytest.mark.parametrize("printed", ["cstr(arg1, 48)", "cstr(arg1, 48), retval"])
def test_parameters_by_position_in_a_command(tmp_path, spec, printed):
    """What cannot be read is told as such, kept until the return or not; it is not what was in memory before."""
    lines, nowhere = traced(tmp_path, spec, printed), {8, symbols.running().data("linux_banner")}
    assert [each["cstr(arg1, 48)"] for each in lines if each["args"]["filename"] in nowhere] == [None, None]
    assert ENDING.decode() in [each["cstr(arg1, 48)"] for each in lines]


def test_parameters_by_position_of_functions_of_several_types(tmp_path):
    """Also beyond those of one of them: then by what tells the registers."""
    lines = traced(tmp_path, "kernel::do_sys_open*", "cstr(arg1, 48), arg5")
    assert is_of_the_program({each["cstr(arg1, 48)"] for each in lines})
    assert [each["cstr(arg1, 48)"] for each in lines].count(None) >= 2


def test_what_programs_have_in_their_memory_leads_to_their_memory_only(session):
    firsts, inner = Count("firsts", by=("first",)), Count("inner", by=("word",))

    @session.entry("syscall::readv")
    def reading(ctx, vec):
        firsts.add(key=(vec.iov_len,))
        inner.add(key=(ptr[u64](vec.iov_base)[0],))

    assert not session.refused
    read_into(symbols.running().data("linux_banner"))
    assert texts(session, "firsts")[0] == {8}
    assert texts(session, "inner")[0] == set()


def test_the_kernels_own_structures_are_followed(session):
    names = Count("names", by=("name",))

    @session.entry("kernel::vfs_read")
    def reading(ctx, file, buf):
        names.add(key=(cstr(file.f_path.dentry.d_name.name, 16),))

    assert not session.refused
    with open("/dev/zero", "rb", buffering=0) as zero:
        zero.read(1)
    assert "zero" in texts(session, "names")[0]
