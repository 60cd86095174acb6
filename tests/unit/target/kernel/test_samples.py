"""Records of samples as the kernel lays them out (perf_event_open(2))."""

import struct

import pytest

from anyprobe.target.kernel.samples import Forked, Lost, Mapped, Named, Sample, Throttled, parsed

IDENTITY = struct.pack("<IIQ", 7, 8, 1234)
"""What all records but samples end with: process, thread, time."""


def record(kind, body, what=0):
    return struct.pack("<IHH", kind, what, 8 + len(body)) + body


def sample(chain, registers, stack, filled, *, chains=True):
    body = IDENTITY
    if chains:
        body += struct.pack(f"<Q{len(chain)}Q", len(chain), *chain)
    body += struct.pack("<QQQQ", 2, *registers) if registers else struct.pack("<Q", 0)
    body += struct.pack("<Q", len(stack)) + stack
    return record(9, body + (struct.pack("<Q", filled) if stack else b""))


def test_a_sample_has_the_kernels_stack_and_as_much_of_the_programs_as_there_was():
    contexts = (1 << 64) - 128, (1 << 64) - 512
    content = sample([contexts[0], 0xFFFFFFFF81000010, 0xFFFFFFFF81000020], (1, 2, 3), b"abcdefgh" * 2, 8)
    assert parsed(content, chains=True) == Sample(
        1234, 7, 8, (0xFFFFFFFF81000010, 0xFFFFFFFF81000020), (1, 2, 3), b"abcdefgh"
    )


@pytest.mark.parametrize("stack", [b"", b"12345678"])
def test_a_sample_without_registers_has_none(stack):
    assert parsed(sample([], (), stack, 0, chains=False), chains=False) == Sample(1234, 7, 8, (), None, b"")


def test_a_mapping_is_as_maps_would_show_it():
    body = struct.pack("<IIQQQIIQQII", 7, 8, 0x1000, 0x2000, 0x3000, 8, 1, 55, 0, 5, 2) + b"/lib/a b.so\0\0\0\0\0"
    found = parsed(record(10, body + IDENTITY), chains=True)
    assert isinstance(found, Mapped)
    mapping = found.mapping
    assert (found.time, found.pid, mapping.start, mapping.end, mapping.offset) == (1234, 7, 0x1000, 0x3000, 0x3000)
    assert (mapping.perms, mapping.device, mapping.inode, mapping.path) == ("r-xp", "08:01", 55, "/lib/a b.so")


def test_other_records():
    fork = struct.pack("<IIIIQ", 9, 7, 10, 8, 1234)
    assert parsed(record(7, fork + IDENTITY), chains=True) == Forked(1234, 9, 7, 10, 8)
    name = struct.pack("<II", 7, 8) + b"worker\0\0"
    assert parsed(record(3, name + IDENTITY), chains=True) == Named(1234, 7, 8, "worker", executed=False)
    assert parsed(record(3, name + IDENTITY, 1 << 13), chains=True) == Named(1234, 7, 8, "worker", executed=True)
    assert parsed(record(2, struct.pack("<QQ", 1, 5) + IDENTITY), chains=True) == Lost(1234, 5)
    assert parsed(record(13, struct.pack("<Q", 6) + IDENTITY), chains=True) == Lost(1234, 6)
    assert parsed(record(5, bytes(24) + IDENTITY), chains=True) == Throttled(1234)
    assert parsed(record(99, IDENTITY), chains=True) is None
