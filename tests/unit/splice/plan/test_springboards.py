from types import SimpleNamespace

import pytest

from anyprobe.core.address import PAGE
from anyprobe.isa import disassemble
from anyprobe.isa.decode import decode_range
from anyprobe.journal.records import MappingUse
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.splices import Pun, Strategy
from anyprobe.splice.plan.springboards import SPRINGBOARD_BYTES, PunPlaces, Springboards

BASE = 0x1_0000_0000
TAKEN = SimpleNamespace(start=BASE, end=BASE + PAGE, path="")


class FakeArena:
    def __init__(self, journal_bytes, size):
        self.pieces = (SimpleNamespace(size=journal_bytes),)
        self.memory = bytearray(size)

    def view(self, offset, size):
        return memoryview(self.memory)[offset : offset + size]


@pytest.fixture
def boards():
    return Springboards(AddressSpace([TAKEN]))


def test_one_address_is_taken_once(boards):
    place = BASE + 2 * PAGE + 5
    assert boards.can_reach(place, 1)
    assert boards.choose(place, 1) == place
    assert not boards.can_reach(place, 1)
    assert boards.choose(place, 1) is None


def test_overlapping_springboards_are_never_made(boards):
    place = BASE + 2 * PAGE + 100
    boards.choose(place, 1)
    for distance in range(-SPRINGBOARD_BYTES + 1, SPRINGBOARD_BYTES):
        assert not boards.can_reach(place + distance, 1)
    assert boards.choose(place + SPRINGBOARD_BYTES, 1) == place + SPRINGBOARD_BYTES
    assert boards.choose(place - SPRINGBOARD_BYTES, 1) == place - SPRINGBOARD_BYTES


def test_the_target_s_own_pages_are_out_of_reach(boards):
    assert not boards.can_reach(BASE, PAGE)
    assert boards.choose(BASE + 16, 256) is None


def test_springboards_stay_within_their_page(boards):
    last = BASE + 3 * PAGE - SPRINGBOARD_BYTES
    assert boards.can_reach(last, 1)
    assert not boards.can_reach(last + 1, 1)
    assert boards.choose(last, 1) == last


def test_pages_in_use_come_first(boards):
    boards.choose(BASE + 9 * PAGE, 1)
    address = boards.choose(BASE + PAGE, 20 * PAGE)
    assert address & -PAGE == BASE + 9 * PAGE
    assert len(boards.fresh_pieces(0)) == 1


def test_a_range_is_used_to_the_last_place(boards):
    base, count = BASE + 2 * PAGE, 256
    chosen = []
    while (address := boards.choose(base, count)) is not None:
        chosen.append(address)
    assert not boards.can_reach(base, count)
    assert all(base <= address < base + count for address in chosen)
    assert len(chosen) == (count + SPRINGBOARD_BYTES - 1) // SPRINGBOARD_BYTES
    assert all(b - a >= SPRINGBOARD_BYTES for a, b in zip(sorted(chosen), sorted(chosen)[1:], strict=False))


def test_pages_share_memory_where_their_offsets_are_free(boards):
    for number, offset in ((2, 0), (4, 100), (6, 200), (8, 100 + SPRINGBOARD_BYTES - 1)):
        boards.choose(BASE + number * PAGE + offset, 1)
    pieces = boards.fresh_pieces(3 * PAGE)
    assert [(piece.use, piece.size) for piece in pieces] == [(MappingUse.SPRINGBOARD, PAGE)] * 4
    assert [piece.address - BASE for piece in pieces] == [number * PAGE for number in (2, 4, 6, 8)]
    assert [piece.offset for piece in pieces] == [3 * PAGE, 3 * PAGE, 3 * PAGE, 4 * PAGE]


def test_written_springboards_jump_to_their_patch(boards):
    places = [BASE + 2 * PAGE + 64, BASE + 4 * PAGE + 128]
    for place in places:
        boards.choose(place, 1)
    assert boards.has_fresh()
    boards.fresh_pieces(0)
    arena = FakeArena(PAGE, 4 * PAGE)
    boards.mapped(arena)
    assert not boards.has_fresh()
    for number, place in enumerate(places):
        boards.write(place, 0x7FFF_1234_5678 + number)
    for number, offset in enumerate((64, 128)):
        code = bytes(arena.memory[PAGE + offset : PAGE + offset + SPRINGBOARD_BYTES])
        assert disassemble.format(code[:6], 0x1000)[0][2] == "jmp qword ptr [0x1006]"
        assert int.from_bytes(code[6:], "little") == 0x7FFF_1234_5678 + number


def test_pages_mapped_later_have_memory_of_their_own(boards):
    boards.choose(BASE + 2 * PAGE, 1)
    boards.fresh_pieces(0)
    boards.mapped(FakeArena(PAGE, 4 * PAGE))
    boards.choose(BASE + 4 * PAGE + 100, 1)
    assert [piece.address for piece in boards.fresh_pieces(0)] == [BASE + 4 * PAGE]


def test_pages_that_could_not_be_mapped_are_forgotten(boards):
    place = BASE + 2 * PAGE
    boards.choose(place, 1)
    boards.forget_fresh()
    assert not boards.has_fresh()
    assert boards.fresh_pieces(0) == []
    assert not boards.can_reach(place, 1), "somebody else has that page"


def test_a_place_that_is_given_back_can_be_taken_again(boards):
    place = BASE + 2 * PAGE + 5
    boards.choose(place, 1)
    boards.give_back(place)
    assert not boards.has_fresh(), "nobody needs the page any more"
    assert boards.choose(place, 1) == place
    other = boards.choose(place + SPRINGBOARD_BYTES, 1)
    boards.give_back(place)
    assert boards.has_fresh()
    assert not boards.can_reach(other, 1)


def test_what_is_written_is_never_given_back(boards):
    place = BASE + 2 * PAGE
    boards.choose(place, 1)
    boards.fresh_pieces(0)
    boards.mapped(FakeArena(PAGE, 4 * PAGE))
    boards.write(place, 0x1234)
    boards.give_back(place)
    assert boards.is_written(place)
    assert not boards.can_reach(place, 1)


def test_claims_take_and_give_back_the_places_of_puns(boards):
    (nop,) = decode_range(b"\x90", 0x2000)
    claims = Claims(places=PunPlaces(boards, BASE))
    splice, other = (
        SpliceDraft(Strategy.PUNNED, 0x2000, (nop,), [], 1, 0x2000, 4, Pun(0, 0, 0x5000)) for _ in range(2)
    )
    assert claims.places.reachable(splice.pun)
    claims.claim(splice)
    assert splice.springboard == BASE + 0x5000
    assert not claims.places.reachable(other.pun), "two jumps to one springboard cannot both be planned"
    claims.release(splice)
    assert claims.places.reachable(other.pun)
    claims.claim(splice)
    assert splice.springboard == BASE + 0x5000


def test_pages_that_will_share_memory_take_nothing_from_one_another_before(boards):
    """Each page has all its places until it is mapped: what was reachable can be taken, in whatever order."""
    first, second = BASE + 2 * PAGE, BASE + 4 * PAGE
    boards.choose(first + 100, 1)
    boards.choose(second + 200, 1)
    assert boards.choose(second + 100, 1) == second + 100
    pieces = boards.fresh_pieces(0)
    assert [piece.offset for piece in pieces] == [0, PAGE]
    boards.mapped(FakeArena(PAGE, 4 * PAGE))
    assert boards.can_reach(first + 200, 1)
    assert not boards.can_reach(second + 200, 1)


def test_pages_that_share_memory_have_the_places_of_both_taken(boards):
    first, second = BASE + 2 * PAGE, BASE + 4 * PAGE
    boards.choose(first + 100, 1)
    boards.choose(second + 200, 1)
    assert len({piece.offset for piece in boards.fresh_pieces(0)}) == 1
    boards.mapped(FakeArena(PAGE, 4 * PAGE))
    assert not boards.can_reach(first + 200, 1)
    assert not boards.can_reach(second + 100, 1)
    assert boards.choose(first + 300, 1) == first + 300
    assert not boards.can_reach(second + 300, 1)


def test_half_of_what_is_left_of_a_programs_mappings_stays_its_own(boards):
    """Pages in use are shared by whoever can reach them; new ones are mapped up to a number."""
    boards.look(AddressSpace([TAKEN]), 65_526, 65_530)
    places = [BASE + number * 0x100_0000 for number in range(1, 4)]
    for place in places[:2]:
        assert boards.can_reach(place, 256)
        boards.choose(place, 256)
    assert not boards.can_reach(places[2], 256)
    assert boards.can_reach(places[0], 256)
    boards.give_back(boards.pages()[0])
    assert boards.can_reach(places[2], 256)
