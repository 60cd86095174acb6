"""What is written where a breakpoint has been set on a splice, and where nothing may be."""

from types import SimpleNamespace

import pytest

from anyprobe.core.address import PAGE
from anyprobe.splice.apply.uprobes import take_out
from anyprobe.splice.emitted import EmittedSplice
from anyprobe.splice.plan.splices import Strategy

TEXT, SITE = 0x400000, 0x400100
OLD, NEW = b"\x55\x48\x89\xe5\x53", b"\xe9\1\2\3\4"
DISPLACED = 12


def splice_at(address, *, old=OLD, new=NEW, end=None, borrowed=b"", springboard=False):
    planned = SimpleNamespace(strategy=Strategy.JUMP, start=address, end=end or address + len(old))
    return EmittedSplice(planned, 0, address, old, new, None, borrowed=borrowed, is_springboard=springboard)


@pytest.fixture
def memory(plain_memory):
    found = plain_memory(TEXT, PAGE)
    found.write(SITE, b"\xcc" + NEW[1:])
    return found


@pytest.fixture
def splice():
    return splice_at(SITE, end=SITE + DISPLACED)


@pytest.mark.parametrize(
    "other",
    [
        splice_at(SITE - 5),
        splice_at(SITE + DISPLACED),
        splice_at(SITE + DISPLACED, new=b"\xeb\x07", old=b"\x31\xc0", springboard=True),
        splice_at(SITE - 5, new=b"\xe9\1\2", old=b"\x31\xc0\x90", borrowed=b"\x48\x89"),
    ],
    ids=["in front", "behind", "springboard behind", "pun that borrows other bytes"],
)
def test_what_is_beside_a_splice_does_not_matter(memory, splice, other):
    assert take_out(splice, [splice, other], memory)
    assert memory.read(SITE, 5) == b"\xcc" + OLD[1:]


@pytest.mark.parametrize(
    "other",
    [
        splice_at(SITE + 7, springboard=True),
        splice_at(SITE + DISPLACED - 1, new=b"\xeb\x07", old=b"\x31\xc0"),
        splice_at(SITE - 3, new=b"\xe9\1\2", old=b"\x31\xc0\x90", borrowed=b"\xe9\1"),
    ],
    ids=["springboard within", "jump in the last instruction", "pun that borrows the first bytes"],
)
def test_nothing_is_written_where_the_own_instructions_cannot_run(memory, splice, other):
    """What is displaced holds another splice's bytes: run in its place, it would go on inside these."""
    assert not take_out(splice, [splice, other], memory)
    assert memory.read(SITE, 5) == b"\xcc" + NEW[1:]
