"""Whose the kernel's kprobes are."""

import pytest

from anyprobe.probes.providers.kernel.kernel_listing import OwnedKprobe, owners
from anyprobe.target.kernel.attached import Holder, LoadedProgram, Place
from anyprobe.target.kernel.kprobelist import DynamicEvent, ListedKprobe

AT = 0xFFFFFFFF81457340
LISTED = ListedKprobe(AT + 4, "k", "vfs_read", 4, "", ("FTRACE",))


def program(place, **fields):
    return LoadedProgram(3, "kprobe", "count", 0, 0, places=[place], holders=[Holder(7, "python")], **fields)


@pytest.mark.parametrize(
    ("place", "is_owner"),
    [
        (Place("kprobe", "", AT), True),
        (Place("kprobe", "", AT + 4), True),
        (Place("kprobe", "vfs_read"), True),
        (Place("kprobe", "", AT + 8), False),
        (Place("kretprobe", "", AT), False),
        (Place("fentry", "vfs_read"), False),
    ],
)
def test_owner_by_place(place, is_owner):
    assert len(list(owners(LISTED, [program(place)], []))) == is_owner


def test_events_own_kprobes_of_their_kind():
    def event(kind, place):
        return DynamicEvent("", kind, f"kprobes/{kind}", place, True, 5, 2)

    events = [event("p", "vfs_read"), event("r", "vfs_read"), event("p", "vfs_write")]
    (owner,) = owners(LISTED, [], events)
    assert str(owner) == "event kprobes/p, 2 missed"


def test_line_is_the_kernels_with_the_owner_behind():
    found = OwnedKprobe(LISTED, tuple(owners(LISTED, [program(Place("kprobe", "", AT))], [])))
    assert str(found).startswith("ffffffff81457344  k  vfs_read+0x4")
    assert str(found).endswith("[FTRACE]  program 3 count (python 7), misses not told")
