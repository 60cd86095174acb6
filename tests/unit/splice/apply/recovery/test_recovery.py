"""Which processes are cleaned, and that one failure does not hold up the rest; which mappings are a session's."""

from types import SimpleNamespace

import pytest

from anyprobe.core.errors import NoSuchProcess, StopTimeout, TargetExited
from anyprobe.journal.installed import parts_of
from anyprobe.journal.memfds import is_ours
from anyprobe.splice.apply.recovery import recovery
from anyprobe.splice.apply.recovery.occupants import about_to_call
from anyprobe.splice.apply.recovery.recovery import Removal, remove_everywhere
from anyprobe.splice.apply.staleness import stands
from anyprobe.splice.memory.memfd import held_ranges
from anyprobe.target.remote.gadgets import Gadgets
from anyprobe.target.system.procfs import parse_maps

MAPS = parse_maps(
    b"""\
1000-3000 r--p 00000000 00:01 7 /memfd:anyprobe (deleted)
5000-6000 rw-p 00000000 00:00 0
6000-8000 r-xs 00004000 00:01 7 /memfd:anyprobe (deleted)
9000-a000 rw-p 00000000 00:00 0
a000-b000 r-xs 00006000 00:01 8 /memfd:anyprobe (deleted)
20000-40000 rw-s 00000000 00:01 9 /memfd:anyprobe (deleted)
50000-51000 rw-s 00000000 00:01 7 /memfd:anyprobe-like
60000-61000 r-xp 00002000 08:01 77 /usr/lib/libx.so
61000-62000 r-xp 00003000 08:01 77 /usr/lib/libx.so
"""
)


def test_a_gate_belongs_to_the_mapping_behind_it_and_the_journal_comes_last():
    assert held_ranges(MAPS, 7, [0x5000, 0x9000]) == [(0x5000, 0x8000), (0x1000, 0x3000)]
    assert held_ranges(MAPS, 7, []) == [(0x6000, 0x8000), (0x1000, 0x3000)]
    assert held_ranges(MAPS, 6, [0x5000]) == []


def test_a_gate_without_its_mapping_is_the_programs():
    assert held_ranges([m for m in MAPS if m.start != 0x6000], 7, [0x5000]) == [(0x1000, 0x3000)]


def test_what_is_mapped_stays_while_somebody_has_his_stack_in_it():
    """A helper thread of a dead controller returns into its end by a frame in memory of ours."""
    threads = [SimpleNamespace(tid=tid, registers=SimpleNamespace(rsp=rsp)) for tid, rsp in ((1, 0x500), (2, 0x7FF8))]
    assert recovery.on_our_stacks([(0x1000, 0x2000), (0x6000, 0x8000)], threads) == ("thread 2, which is about to end",)
    assert recovery.on_our_stacks([(0x1000, 0x2000)], threads) == ()


def test_a_call_that_a_stop_interrupted_is_still_to_be_made():
    """``clone`` with a pending stop ends with ERESTARTNOINTR, and the thread stands after the instruction."""
    gadgets = Gadgets(syscall_ret=0x1000, restorer=0x2000)
    stacks = {0x100: 0x2000, 0x200: 0x2000, 0x300: 0x2000, 0x400: 0x9999}
    memory = SimpleNamespace(read=lambda address, length: stacks[address].to_bytes(length, "little"))
    process = SimpleNamespace(gadgets=lambda: gadgets, mem=memory)
    places = {1: (0x1000, 0x100), 2: (0x1002, 0x200), 3: (0x1003, 0x300), 4: (0x1002, 0x400)}
    threads = [
        SimpleNamespace(tid=tid, registers=SimpleNamespace(rip=rip, rsp=rsp)) for tid, (rip, rsp) in places.items()
    ]
    assert about_to_call(process, threads) == ("a call in thread 1", "a call in thread 2")


def test_a_controllers_own_view_is_not_a_session_in_it():
    assert [m.start for m in MAPS if is_ours(m)] == [0x1000, 0x6000, 0xA000]


def test_a_module_stands_while_its_file_is_mapped_as_it_was():
    whole = parts_of(parse_maps(b"60000-62000 r-xp 00002000 08:01 77 /usr/lib/libx.so\n"))
    assert stands(whole, MAPS)  # split in two by mprotect
    assert not stands(whole, MAPS[:-1])
    for other in (b"08:02 77", b"08:01 78"):
        assert not stands(whole, parse_maps(b"60000-62000 r-xp 00002000 " + other + b" /usr/lib/libx.so\n"))
    assert not stands(whole, parse_maps(b"60000-62000 r-xp 00001000 08:01 77 /usr/lib/libx.so\n"))


@pytest.fixture
def processes(monkeypatch):
    """Processes by number: what opening or cleaning them raises; who is found at each look; who was cleaned."""
    troubles, looks, cleaned = {}, [], []

    def opened(pid):
        if isinstance(troubles.get(pid), NoSuchProcess):
            raise troubles[pid]
        return SimpleNamespace(pid=pid, close=lambda: None, mappings=lambda: [m for m in MAPS if m.inode == pid])

    def removed(process, sessions, patches):
        if process.pid in troubles:
            raise troubles[process.pid]
        cleaned.append((process.pid, sessions))
        return Removal(process.pid, 1, (), (), 0)

    def found(inodes, since):
        looked.append(inodes)
        return looks.pop(0) if looks else []

    looked = []
    monkeypatch.setattr(recovery, "Process", SimpleNamespace(open=opened))
    monkeypatch.setattr(recovery, "remove", removed)
    monkeypatch.setattr(recovery, "processes_with_splices", found)
    return SimpleNamespace(troubles=troubles, looks=looks, cleaned=cleaned, looked=looked)


def test_one_failure_does_not_hold_up_the_rest(processes):
    processes.troubles[11] = StopTimeout("it sleeps")
    processes.troubles[12] = TargetExited(12)
    processes.troubles[13] = NoSuchProcess("gone")
    processes.looks[:] = [[10, 11, 12, 13, 14, 15]]
    done, failed = remove_everywhere(frozenset([1]), frozenset([b"s"]), but=10)
    assert [removal.pid for removal in done] == [14, 15]
    assert failed == ["process 11 still has probes: it sleeps"]
    assert processes.cleaned == [(14, frozenset([b"s"])), (15, frozenset([b"s"]))]


def test_children_forked_meanwhile_are_found_and_nobody_is_cleaned_twice(processes):
    processes.troubles[11] = StopTimeout("it sleeps")
    processes.looks[:] = [[11, 12], [11, 12, 13], [11, 13, 14]]
    done, failed = remove_everywhere(frozenset([1]), frozenset([b"s"]))
    assert [removal.pid for removal in done] == [12, 13, 14]
    assert len(failed) == 1


def test_without_sessions_other_memory_found_on_the_way_is_followed(processes):
    processes.looks[:] = [[8], [8, 20]]
    done, _ = remove_everywhere(frozenset([7]))
    assert [removal.pid for removal in done] == [8, 20]
    assert processes.looked[:2] == [{7}, {7, 8}]
