"""Parsers of /proc files, on texts; lists of tasks."""

import struct
import subprocess
import sys
from contextlib import contextmanager
from subprocess import PIPE

import pytest

from anyprobe.core.errors import StopTimeout
from anyprobe.target.system import procfs
from anyprobe.target.system.procfs import parse_auxv, parse_maps, parse_stat, parse_status, read_mappings

GONE = 1 << 22  # no task has this number
MAPS = b"""\
559d1a4d2000-559d1a4d4000 r--p 00000000 fe:00 260249                     /usr/bin/echo
559d1a4d4000-559d1a4d8000 r-xp 00002000 fe:00 260249                     /usr/bin/echo
7f0000000000-7f0000001000 rw-s 00000000 00:01 2052                       /memfd:any probe (deleted)
7f0000001000-7f0000002000 rw-p 00000000 00:00 0
7f0000003000-7f0000004000 r-xp 00001000 fe:00 7                          /tmp/two  spaces\\012x.so
7ffc66b5d000-7ffc66b7e000 rw-p 00000000 00:00 0                          [stack]
"""


def test_maps():
    mappings = parse_maps(MAPS)
    assert [m.path for m in mappings] == [
        "/usr/bin/echo", "/usr/bin/echo", "/memfd:any probe", "", "/tmp/two  spaces\nx.so", "[stack]"
    ]  # fmt: skip
    text, shared = mappings[1], mappings[2]
    assert (text.start, text.end, text.offset, text.device, text.inode) == (
        0x559D1A4D4000, 0x559D1A4D8000, 0x2000, "fe:00", 260249
    )  # fmt: skip
    assert text.executable
    assert text.readable
    assert text.private
    assert not text.writable
    assert shared.deleted
    assert not shared.private
    assert not text.deleted


def test_own_maps_agree_with_the_kernel():
    assert all(m.start < m.end for m in read_mappings("self"))


@pytest.mark.parametrize(("last", "still_there", "found"), [("", True, 1), ("", False, 0), ("[vsyscall]", False, 2)])
def test_a_part_of_the_maps_of_a_process_that_ends_is_none(monkeypatch, last, still_there, found):
    """The kernel gives some pages of text at a time, and no more once the memory is gone: libraries seem unloaded."""
    line = b"55d0c0000000-55d0c0001000 r-xp 00000000 fe:00 17 /bin/true\n"
    page = f"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 {last}\n".encode() if last else b""
    monkeypatch.setattr(procfs, "read_file", lambda _: line + page)
    monkeypatch.setattr(procfs, "_read_line", lambda _: line if still_there else b"")
    monkeypatch.setattr(procfs, "voice", lambda pid: pid)
    assert len(read_mappings(17)) == found


def test_stat_with_parentheses_and_spaces_in_the_name():
    fields = " ".join(str(number) for number in range(4, 53))
    stat = parse_stat(f"17 (a) (b c) S {fields}\n".encode())
    assert (stat.comm, stat.state, stat.parent, stat.flags, stat.threads) == ("a) (b c", "S", 4, 9, 20)
    assert (stat.start_time, stat.start_code, stat.start_stack, stat.start_heap) == (22, 26, 28, 47)


def test_kinds_of_tasks():
    def task(comm, state, flags):
        return parse_stat(f"1 ({comm}) {state} 0 0 0 0 0 {flags} {' '.join(['0'] * 43)}\n".encode())

    assert task("kthreadd", "S", 0x208040).kernel_thread
    assert task("iou-wrk-1", "S", 0x10).worker
    assert not task("x", "S", 0x400000).worker
    assert task("x", "Z", 0).ended


def test_status():
    status = parse_status(b"Name:\tx y\nTracerPid:\t0\nUid:\t1\t2\t3\t4\nx86_Thread_features:\tshstk wrss \n")
    assert status["Uid"].split() == ["1", "2", "3", "4"]
    assert status["x86_Thread_features"] == "shstk wrss"


def test_auxv_ends_at_null():
    assert parse_auxv(struct.pack("<8Q", 33, 0x7FFE, 9, 0x1000, 0, 0, 5, 5)) == {33: 0x7FFE, 9: 0x1000}


THREADS = """
import sys, threading
running = [threading.Thread(target=threading.Event().wait, daemon=True) for _ in range(int(sys.argv[1]))]
for thread in running:
    thread.start()
print(threading.get_native_id(), *(thread.native_id for thread in running), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [0, 1, 40])
def test_tasks_are_counted_as_the_kernel_counts_them(number):
    with threads(number) as (pid, _):
        assert procfs.count_tasks(pid) == procfs.read_stat(pid).threads == len(procfs.read_tasks(pid))


def test_a_list_of_tasks_is_whole_when_as_many_of_the_listed_live_as_there_are():
    with threads(3) as (pid, tids):
        assert procfs.is_whole(pid, tids)
        assert not procfs.is_whole(pid, tids[:-1])
        assert not procfs.is_whole(pid, [*tids[:-1], GONE]), "one has ended, and another took its place"
        assert procfs.is_whole(pid, [*tids[:-1], GONE], stopped={GONE}), "what is stopped is not looked at"


def test_tasks_are_listed_until_none_is_left_out(monkeypatch):
    with threads(3) as (pid, tids):
        parts = iter([1, 2])
        monkeypatch.setattr(procfs, "read_tasks", lambda _: tids[: next(parts, None)])
        assert procfs.read_all_tasks(pid) == tids
        monkeypatch.setattr(procfs, "read_tasks", lambda _: tids[1:])
        with pytest.raises(StopTimeout, match="end all the time"):
            procfs.read_all_tasks(pid)


@contextmanager
def threads(number):
    """Run a program with so many threads besides its first; yield its id and theirs, in order.

    Threads of this process would not do: those of other tests may be about to end.
    """
    with subprocess.Popen([sys.executable, "-c", THREADS, str(number)], stdin=PIPE, stdout=PIPE, text=True) as program:
        yield program.pid, sorted(map(int, program.stdout.readline().split()))
