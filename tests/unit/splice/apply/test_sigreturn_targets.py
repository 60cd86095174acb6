"""Who is in a patch that goes, where its site does not stay."""

from types import SimpleNamespace

import pytest

from anyprobe.core.memory import MemoryFault
from anyprobe.journal.memfds import MEMFD_PATH
from anyprobe.splice.apply.sigreturn_targets import Lingering, SigreturnTargets
from anyprobe.splice.emitted import FunctionChange

BIAS, SITE, PATCH, ROUTINE, STACK = 0x400000, 0x1027, 0x700000, 0x700800, 0x10000
SPRINGBOARD, BOARD = 0x500000, 0x402000
OURS = SimpleNamespace(start=PATCH, end=PATCH + 0x1000, perms="r-xs", offset=0x1000, path=MEMFD_PATH, writable=False)


def splice_at(site, *, patch=True):
    code = SimpleNamespace(address=PATCH, code=bytes(64)) if patch else None
    planned = SimpleNamespace(start=site)
    known = {"planned": planned, "bias": BIAS, "patch": code, "springboard": SPRINGBOARD}
    return SimpleNamespace(**known, address=BIAS + site, new=b"", is_springboard=False)


def dead_jump():
    """A springboard in dead bytes that leads to the patch."""
    new = b"\xe9" + (PATCH - BOARD - 5).to_bytes(4, "little")
    planned = SimpleNamespace(start=BOARD - BIAS)
    return SimpleNamespace(planned=planned, bias=BIAS, address=BOARD, new=new, patch=None, is_springboard=True)


class Memory:
    """A stack with one word on it."""

    def __init__(self, word):
        self.word = word

    def read(self, address, size):
        if not STACK <= address < STACK + 0x10000:
            raise MemoryFault(address, size)
        return self.word.to_bytes(8, "little") + bytes(size - 8)


def removing(*removed):
    return FunctionChange(BIAS + 0x1000, removed)


def targets_of(lingering, change):
    return SigreturnTargets(lingering.with_removed([change]), [(BIAS + SITE - 3, BIAS + SITE + 1, change)])


def taken(ways, pc, *, word=0, asleep=False, stack=STACK):
    thread = SimpleNamespace(tid=7, registers=SimpleNamespace(rip=pc, rsp=stack))
    stop = SimpleNamespace(threads=[thread], mappings=[OURS])
    return [(each.address, str(why.reason.value)) for each, why in ways.taken(Memory(word), stop, lambda _: asleep)]


def found(pc, *, site=SITE, patch=True, **options):
    ways = targets_of(Lingering(), removing(splice_at(site, patch=patch), dead_jump()))
    return taken(ways, pc, **options)


TAKEN = [(BIAS + 0x1000, "signal-context-in-jtpr")]


@pytest.mark.parametrize("pc", [PATCH, PATCH + 63])
def test_a_thread_in_the_patch_has_to_leave_it(pc):
    assert found(pc) == TAKEN


@pytest.mark.parametrize("pc", [SPRINGBOARD, BOARD])
def test_so_has_one_on_the_way_there(pc):
    assert found(pc) == TAKEN
    assert found(pc + 5) == found(pc, site=SITE + 1) == []


def test_one_in_a_routine_comes_back_into_the_patch():
    assert found(ROUTINE, word=PATCH + 20) == TAKEN
    assert found(ROUTINE) == []
    assert found(BIAS + 0x5000, word=PATCH + 20) == []  # a stale word
    assert found(ROUTINE, word=PATCH + 20, stack=0x500) == []  # no stack


def test_where_the_site_stays_or_nobody_is_in_the_patch_nothing_has_to_wait():
    assert found(PATCH, site=SITE + 1) == []
    assert found(PATCH, site=SITE - 4) == []
    assert found(PATCH, patch=False) == []
    assert found(PATCH + 64) == []
    assert found(PATCH, asleep=True) == []


def test_who_is_in_a_patch_that_an_earlier_change_took_out_is_waited_for():
    """Until nobody was found there: what is in the text no more is entered no more."""
    lingering, nothing = Lingering(), removing()
    lingering.note([removing(splice_at(SITE), dead_jump())], set())
    for pc in (PATCH + 63, SPRINGBOARD, BOARD):
        ways = targets_of(lingering, nothing)
        assert taken(ways, pc) == TAKEN
        lingering.note([], ways.empty({nothing}))  # refused: somebody is there
    ways = targets_of(lingering, nothing)
    assert taken(ways, PATCH + 64) == []
    lingering.note([nothing], ways.empty(()))
    assert taken(targets_of(lingering, nothing), PATCH) == []


def test_what_a_refused_change_did_not_take_out_is_no_way_back():
    lingering, refused = Lingering(), removing(splice_at(SITE))
    lingering.note([], targets_of(lingering, refused).empty({refused}))
    assert taken(targets_of(lingering, removing()), PATCH) == []
