"""What kprobes cover, from a table in memory as kernels have it."""

import struct

import pytest

from anyprobe.core.memory import MemoryFault
from anyprobe.target.kernel.armed import Covered, PristineMemory, covered
from anyprobe.target.kernel.btf import Btf
from support.btf_blobs import Blob
from support.bytes_memory import BytesMemory

TABLE, TEXT = 0xFFFF_FFFF_8200_0000, 0xFFFF_FFFF_8100_0000
PROBE_BYTES = 64


@pytest.fixture(scope="module")
def types():
    blob = Blob()
    byte, number, long = blob.integer("u8", 1), blob.integer("u32"), blob.integer("u64", 8)
    members = [("hlist", long, 0), ("addr", long, 128), ("opcode", byte, 192), ("flags", number, 224)]
    probe = blob.structure("kprobe", 32, members)
    blob.structure("optimized_kprobe", 48, [("kp", probe, 0), ("optinsn", long, 256)])
    return Btf(blob.content())


def memory(*probes):
    """Return a table of chains, and the kprobes in one of them: (address, opcode, flags, the four bytes after it)."""
    first = TABLE + 8 * 64
    table = bytearray(8 * 64)
    if probes:
        table[8 * 5 : 8 * 6] = struct.pack("<Q", first)
    content = b""
    for number, (address, opcode, flags, copied) in enumerate(probes):
        following = first + PROBE_BYTES * (number + 1) if number + 1 < len(probes) else 0
        probe = struct.pack("<QQQB3xI", following, 0, address, opcode, flags) + copied
        content += probe.ljust(PROBE_BYTES, b"\0")
    return BytesMemory(TABLE, bytes(table) + content)


def test_traps_jumps_and_what_the_tracer_does(types):
    found = covered(
        types,
        memory((TEXT + 1, 0x55, 0, b""), (TEXT + 9, 0x48, 4, b"\x89\xfb\x41\x57"), (TEXT + 20, 0x0F, 8, b"")),
        TABLE,
    )
    assert found == [Covered(TEXT + 1, b"\x55"), Covered(TEXT + 9, b"\x48\x89\xfb\x41\x57")]


def test_no_kprobes_and_no_types(types):
    assert covered(types, memory(), TABLE) == []
    assert covered(Btf(Blob().content()), memory((TEXT, 0x55, 0, b"")), TABLE) == []


class _Counting:
    """Memory that counts how often it is read."""

    def __init__(self, memory):
        self.memory, self.reads = memory, 0

    def read(self, address, size):
        self.reads += 1
        return self.memory.read(address, size)


def test_the_table_is_read_at_once_and_types_are_found_once(types):
    counting = _Counting(memory())
    assert covered(types, counting, TABLE) == []
    assert counting.reads == 1
    assert types.structure("kprobe") is types.structure("kprobe")


def test_a_chain_that_leads_nowhere_ends(types):
    broken = memory((TEXT, 0x55, 0, b""))
    content = broken.content[: 8 * 64] + struct.pack("<Q", 0x1234) + broken.content[8 * 64 + 8 :]
    assert covered(types, BytesMemory(TABLE, content), TABLE) == [Covered(TEXT, b"\x55")]


def test_text_is_shown_as_it_is_without_them():
    text = b"\x90\xcc\xbb\xe9\x01\x02\x03\x04\x90\x53"
    covers = [Covered(TEXT + 3, b"\x48\x89\xfb\x41\x57"), Covered(TEXT + 1, b"\x55"), Covered(TEXT + 9, b"\x53")]
    pristine = PristineMemory(BytesMemory(TEXT, text), covers)
    whole = b"\x90\x55\xbb\x48\x89\xfb\x41\x57\x90\x53"
    for low in range(len(whole)):
        for high in range(low + 1, len(whole) + 1):
            assert pristine.read(TEXT + low, high - low) == whole[low:high]
    with pytest.raises(MemoryFault):
        pristine.read(TEXT, 11)
