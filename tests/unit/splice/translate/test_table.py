"""The tables of the signal view: what is described is found in them, whatever little room there is."""

import struct
from contextlib import contextmanager

from anyprobe.journal.records import MappingUse
from anyprobe.splice.memory.arena import Piece
from anyprobe.splice.regions.code_region import _view_bytes, code_piece_bytes
from anyprobe.splice.translate.steps import Op, Step
from anyprobe.splice.translate.table import ViewTable

CODE, TABLE, SIZE = 0x400000, 0x401000, 4096


class Memory:
    """Keeps what is written."""

    def __init__(self):
        self.content = bytearray(2 * SIZE)

    def write(self, piece, address, content):
        offset = address - piece.address
        self.content[offset : offset + len(content)] = content

    @contextmanager
    def view(self, offset, size):
        yield memoryview(self.content)[offset : offset + size]


def recipe(number):
    return (Step(Op.STACK, b=number), Step(Op.DONE))


def test_what_has_been_described_has_its_entry():
    """Descriptions may not take the room in which it is said whose they are."""
    memory = Memory()
    table = ViewTable(memory, Piece(MappingUse.CODE, CODE, 2 * SIZE, 0), TABLE)
    table.expect(150)
    entries = [(CODE + 16 * number, table.positions({0: recipe(number)}), CODE) for number in range(150)]
    described = [entry for entry in entries if entry[1]]
    assert 50 < len(described) < 150
    table.add(entries)
    content = memory.content[SIZE:]
    assert struct.unpack_from("<Q", content)[0] == len(described)
    assert [struct.unpack_from("<QI", content, 32 + 16 * n) for n in range(len(described))] == [
        entry[:2] for entry in described
    ]


def test_pieces_have_room_for_code_and_for_what_is_said_of_it():
    """A thousand patches of one function each of which is unlike the others need more than their code."""
    for code in (1 << 16, 1 << 18, 1 << 21, 1 << 22, 5 << 20, 1 << 25, 1 << 26):
        piece = code_piece_bytes(code)
        assert piece - _view_bytes(piece) >= code
        assert piece < 1.2 * code + (3 << 20)
    piece = code_piece_bytes(1 << 18)
    assert _view_bytes(piece) > 180_000
