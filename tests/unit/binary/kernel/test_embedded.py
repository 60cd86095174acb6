"""The kernel's own listing of its symbols, packed as the kernel packs it, before Linux 6.4 and since."""

import struct
from itertools import pairwise

import pytest

from anyprobe.binary.kernel.embedded import embedded_listing

BASE = 0xFFFF_FFFF_8100_0000
SYMBOLS = [(0x10 * number, "A", f"per_processor_{number}") for number in range(3)]
SYMBOLS += [(BASE + 0x20 * number, "tT"[number % 2], f"do_something_{number}") for number in range(2600)]
SYMBOLS += [(BASE + 0x100000, "D", "a_name_as_long_as_" + "_".join(str(number) for number in range(90)))]
LISTING = "".join(f"{address:016x} {letter} {name}\n" for address, letter, name in SYMBOLS).encode()
TOKENS = [chr(number) if 32 <= number < 127 else f"_{number}" for number in range(256)]
TOKENS[200], TOKENS[201] = "do_something_", "per_"


def padded(content):
    return content + bytes(-len(content) % 8)


def packed(text):
    found = []
    for number in (200, 201):
        text = text.replace(TOKENS[number], chr(number))
    found = text.encode("latin-1")
    size = len(found)
    return (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + found


def made(*, newer, per_processor=True, sequences=b""):
    names = [packed(letter + name) for _, letter, name in SYMBOLS]
    starts = [0]
    for name in names:
        starts.append(starts[-1] + len(name))
    assert all(low < high for low, high in pairwise(starts))
    offsets = [
        (-1 - (address - BASE) if address >= BASE else address) if per_processor else max(address - BASE, 0)
        for address, _, _ in SYMBOLS
    ]
    places = padded(struct.pack(f"<{len(offsets)}i", *offsets)) + struct.pack("<Q", BASE)
    number = struct.pack("<Q", len(SYMBOLS))
    texts = padded(b"".join(names)) + padded(struct.pack(f"<{len(starts[:-1:256])}I", *starts[:-1:256]))
    table, index = b"", []
    for token in TOKENS:
        index.append(len(table))
        table += token.encode("latin-1") + b"\0"
    tokens = padded(table) + struct.pack("<256H", *index)
    rest = number + texts + padded(sequences) + tokens
    parts = rest + places if newer else places + rest
    return bytes(4096) + b"0\x001\x002\x003\x00 something else".ljust(256, b"\0") + parts + bytes(4096)


@pytest.mark.parametrize("newer", [True, False])
def test_names_and_addresses(newer):
    assert embedded_listing(made(newer=newer)) == LISTING


def test_what_lies_between_the_markers_and_the_tokens_does_not_matter():
    assert embedded_listing(made(newer=False, sequences=bytes(range(1, 100)) * 80)) == LISTING


def test_addresses_that_are_all_distances_from_the_base():
    listing = embedded_listing(made(newer=True, per_processor=False)).splitlines()
    assert listing[3:] == LISTING.splitlines()[3:]


@pytest.mark.parametrize("content", [b"", b"nothing" * 1000, made(newer=True)[: len(LISTING) // 8]])
def test_a_file_without_it(content):
    assert embedded_listing(content) == b""
