"""Which processes have splices: found from what /proc says of each."""

import os
from types import SimpleNamespace

import pytest

from anyprobe.journal import installed
from anyprobe.journal.installed import processes_with_splices
from anyprobe.journal.memfds import MEMFD_NAME

OURS = b"7f0000000000-7f0000001000 r--p 00000000 00:01 %d /memfd:" + MEMFD_NAME + b" (deleted)\n"
STARTED = {10: 100, 11: 300, 12: 300, 13: 301}
"""Processes, and when they started; all but one map memory with their number as inode."""


@pytest.fixture
def maps_read(monkeypatch):
    """Have ``/proc`` list the processes; return those whose maps were read."""
    read = []

    def content(path):
        pid = int(path.split("/")[2])
        read.append(pid)
        return b"00400000-00401000 r-xp 00000000 08:01 5 /bin/true\n" if pid == 12 else OURS % pid

    monkeypatch.setattr(installed.procfs, "read_processes", lambda: [*STARTED, os.getpid()])
    monkeypatch.setattr(installed.procfs, "read_stat", lambda pid: SimpleNamespace(start_time=STARTED[pid]))
    monkeypatch.setattr(installed.procfs, "read_file", content)
    return read


def test_processes_are_found_by_the_memory_that_they_map(maps_read):
    assert processes_with_splices() == [10, 11, 13]
    assert processes_with_splices(frozenset([10, 13])) == [10, 13]


def test_maps_of_processes_that_are_too_old_are_not_read(maps_read):
    assert processes_with_splices(frozenset([10, 11]), since=300) == [11]
    assert maps_read == [11, 12, 13]


def test_without_memory_of_its_own_a_session_looks_at_no_process(maps_read):
    assert processes_with_splices(frozenset()) == []
    assert maps_read == []
