"""Whether threads have their ids where generated code reads them."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import MemoryFault
from anyprobe.data.layouts.layout import TID_OFFSET
from anyprobe.probes.providers.function.threads.thread_ids import ThreadIds
from anyprobe.target.system import procfs

PID, BLOCK = 4000, 0x7000


class Threads:
    """Stopped threads, and control blocks with ids in them."""

    def __init__(self, *threads, kept):
        self.threads = [SimpleNamespace(pid=pid, tid=tid, registers=SimpleNamespace(fs_base=block))
                        for pid, tid, block in threads]  # fmt: skip
        self.kept = kept

    @contextmanager
    def stop(self, what):
        yield self

    def read(self, address, size):
        if address - TID_OFFSET not in self.kept:
            raise MemoryFault(address, size)
        return self.kept[address - TID_OFFSET].to_bytes(size, "little")

    def want(self):
        ThreadIds(self, SimpleNamespace(pid=PID, mem=self)).want()


@pytest.mark.parametrize(
    ("numbers", "kept"), [("4001", 4001), ("4001\t17", 17), ("4001\t230\t3", 3), ("", 4001)], ids=repr
)
def test_a_thread_knows_the_id_of_its_own_namespace(monkeypatch, numbers, kept):
    monkeypatch.setattr(procfs, "read_status_field", lambda tid, name: numbers)
    Threads((PID, 4001, BLOCK), kept={BLOCK: kept}).want()
    with pytest.raises(UnsupportedTarget, match="thread 4001"):
        Threads((PID, 4001, BLOCK), kept={BLOCK: kept + 1}).want()


def test_children_of_vfork_have_the_control_block_of_their_parent(monkeypatch):
    monkeypatch.setattr(procfs, "read_status_field", lambda tid, name: str(tid))
    Threads((PID, PID, BLOCK), (4002, 4002, BLOCK), kept={BLOCK: PID}).want()


def test_what_is_no_control_block_has_no_id(monkeypatch):
    monkeypatch.setattr(procfs, "read_status_field", lambda tid, name: str(tid))
    with pytest.raises(UnsupportedTarget, match="glibc"):
        Threads((PID, PID, 0x1000), kept={}).want()
