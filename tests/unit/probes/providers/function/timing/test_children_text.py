"""Which memory of a child's is what patches of its parent's need."""

import pytest

from anyprobe.journal.memfds import MEMFD_PATH
from anyprobe.probes.providers.function.timing.children_text import has_all
from anyprobe.target.system.procfs import Mapping


def mapped(start, end, perms, offset, inode=7):
    return Mapping(start << 12, end << 12, perms, offset << 12, "00:01", inode, MEMFD_PATH, True)


JOURNAL, CODE, DATA = mapped(10, 15, "r--p", 0), mapped(20, 30, "r-xs", 6), mapped(50, 90, "rw-s", 40)
OURS = [JOURNAL, CODE, DATA]


@pytest.mark.parametrize(
    "theirs",
    [
        OURS,
        [JOURNAL, mapped(20, 24, "r-xs", 6), mapped(24, 30, "r-xs", 10), DATA],
        [JOURNAL, CODE, mapped(50, 80, "rw-s", 900), mapped(80, 90, "rw-s", 70)],
        [mapped(1, 4, "r-xs", 6, 8), JOURNAL, CODE, mapped(40, 50, "rw-s", 30), DATA],
    ],
    ids=["inherited", "in pieces", "a copy of its own", "more"],
)
def test_what_it_has(theirs):
    assert has_all(theirs, OURS)


@pytest.mark.parametrize(
    "theirs",
    [
        [],
        [JOURNAL, CODE],
        [JOURNAL, mapped(20, 30, "r-xs", 6, 8), DATA],
        [JOURNAL, mapped(20, 30, "r-xs", 5), DATA],
        [JOURNAL, mapped(20, 24, "r-xs", 6), mapped(25, 30, "r-xs", 11), DATA],
        [JOURNAL, mapped(20, 24, "r-xs", 6), mapped(24, 30, "r-xs", 6), DATA],
        [JOURNAL, mapped(20, 30, "r--s", 6), DATA],
        [mapped(10, 15, "r--p", 0, 8), CODE, DATA],
        [JOURNAL, CODE, mapped(50, 80, "rw-s", 40), mapped(80, 90, "rw-s", 70, 8)],
    ],
    ids=[
        "nothing", "no data", "another file", "another part", "a gap", "the same part twice", "protected",
        "another journal", "another file's data",
    ],
)  # fmt: skip
def test_what_it_has_not(theirs):
    assert not has_all(theirs, OURS)
