"""Where code goes when the address space near a module is cut up by springboards."""

import errno
from itertools import pairwise
from types import SimpleNamespace

import pytest

from anyprobe.core.errors import RemoteCallFailed, StopTimeout, TargetError
from anyprobe.data.layouts.layout import BankLayout
from anyprobe.splice.apply import preparation as under_test
from anyprobe.splice.apply.preparation import Preparation, keep_room
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.memory.space import REACH, TOP, AddressSpace
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Counting, Hook, TimingGroup, demand
from anyprobe.splice.regions.code_region import Cluster
from anyprobe.splice.regions.holdings import Holdings

LIBRARY, MB = 0x7F00_0000_0000, 1 << 20
PROGRAM = SimpleNamespace(start=0x10000, end=0x11000, path="[heap]")


def line(start, end):
    return SimpleNamespace(start=start, end=end, path="")


def between_springboards(distance):
    """Return a space in which every ``distance`` bytes within reach of the library a page is taken."""
    boards = [line(at, at + 0x1000) for at in range(LIBRARY - REACH, LIBRARY + REACH, distance)]
    return AddressSpace([PROGRAM, line(0x8000_0000, LIBRARY - REACH), *boards, line(LIBRARY + REACH, TOP)])


def preparation(space):
    access = SimpleNamespace(process=None, holdings=Holdings(None))
    return Preparation(access, SimpleNamespace(space=space), [], Counting(1), has_slots=lambda _: True)


def cluster(code_bytes, largest=0, counters=0):
    near = BankLayout(counters) if counters else None
    return Cluster(LIBRARY, LIBRARY + MB, code_bytes, largest, near, ["x.so"])


def test_one_place_where_there_is_one():
    sizes, places = preparation(between_springboards(100 * MB))._places_of(cluster(60 * MB))
    assert len(places) == 1
    assert 60 * MB < sizes[0] < 70 * MB


@pytest.mark.parametrize("counters", [0, 1000])
def test_several_places_hold_everything_and_reach_one_another(counters):
    wanted = cluster(60 * MB, 3 * MB, counters)
    under_test = preparation(between_springboards(24 * MB))
    space = under_test._springboards.space
    sizes, places = under_test._places_of(wanted)
    assert len(places) == 4
    # whatever is left over at the end of each is too small for one more function
    assert sum(sizes) >= 60 * MB + 4 * 3 * MB
    assert sizes[0] - sizes[1] == (wanted.near.stride if wanted.near else 0)
    assert all(space.is_free(place, place + size) for place, size in zip(places, sizes, strict=True))
    ranges = sorted(zip(places, sizes, strict=True))
    assert all(low + size <= following for (low, size), (following, _) in pairwise(ranges))
    assert max(*(low + size for low, size in ranges), LIBRARY + MB) - min(*places, LIBRARY) < REACH + MB
    assert not under_test._springboards.space.is_free(places[0], places[0] + sizes[0])


def test_no_place_at_all():
    with pytest.raises(TargetError, match=r"x\.so"):
        preparation(between_springboards(MB // 8))._places_of(cluster(60 * MB, 3 * MB))


class Module:
    """A module between two addresses."""

    def __init__(self, low, high):
        self.low, self.high = low, high


def edits(count, module):
    wants = [Want(0, WantKind.OFFSET, tag=Hook(ActionKind.COUNT)) for _ in range(100)]
    return [SimpleNamespace(module=module, added=wants) for _ in range(count // 100)]


def cut_up(space, distance):
    """Take a page wherever one is free in so many bytes below the library."""
    pages = (LIBRARY - below for below in range(distance, REACH, distance))
    space.reserve_all([(page, page + 0x1000) for page in pages if space.is_free(page, page + 0x1000)])


def test_room_is_kept_for_the_code_of_many_patches():
    """Springboards, which are chosen first, may not cut up the place where the code will go.

    Where all blocks are counted, each takes some 130 bytes of it on average.
    """
    space = AddressSpace([PROGRAM, line(LIBRARY, LIBRARY + MB)])
    keep_room(space, edits(100_000, Module(LIBRARY, LIBRARY + MB)))
    cut_up(space, MB // 8)
    sizes, (place,) = preparation(space)._places_of(cluster(13 * MB))
    assert LIBRARY - 25 * MB < place < LIBRARY - sizes[0]


def test_room_is_kept_for_modules_that_will_share_it():
    """The code of all of them goes to one place, even if each of them has little."""
    modules = [Module(LIBRARY + 2 * MB * number, LIBRARY + (2 * number + 1) * MB) for number in range(10)]
    space = AddressSpace([PROGRAM, *(line(module.low, module.high) for module in modules)])
    keep_room(space, [edit for module in modules for edit in edits(30_000, module)])
    cut_up(space, MB // 8)
    sizes, (place,) = preparation(space)._places_of(cluster(45 * MB))
    assert LIBRARY - 70 * MB < place < LIBRARY - sizes[0]


def test_no_room_is_kept_for_few():
    space = AddressSpace([PROGRAM, line(LIBRARY, LIBRARY + MB)])
    keep_room(space, edits(300, Module(LIBRARY, LIBRARY + MB)))
    assert space.is_free(LIBRARY - MB, LIBRARY)


TAKEN, BUSY = RemoteCallFailed("mmap", errno.EEXIST), StopTimeout("a thread does not stop")


@pytest.mark.parametrize(
    ("errors", "tries", "raised"),
    [
        ([BUSY], 4, StopTimeout),
        ([TAKEN, BUSY], 4, StopTimeout),
        ([TAKEN, TAKEN, BUSY], 4, StopTimeout),
        ([TAKEN], 4, RemoteCallFailed),
        ([BUSY, BUSY, BUSY, TAKEN], 6, RemoteCallFailed),
    ],
    ids=["busy", "taken once", "taken twice", "taken", "taken late"],
)
def test_tries_to_map_memory_come_to_an_end(monkeypatch, errors, tries, raised):
    """A thread that never stops is waited for no longer because the program has mapped something before."""
    access = SimpleNamespace(process=SimpleNamespace(mappings=list), holdings=Holdings(None))
    springboards = SimpleNamespace(reserve_fresh=lambda: None, forget_fresh=lambda: None)
    mapping = Preparation(access, springboards, [], Counting(1), has_slots=lambda _: True)
    clock, made = [0.0], []

    def map_now(_):
        assert len(made) < 50
        made.append(errors[min(len(made), len(errors) - 1)])
        clock[0] += under_test._PATIENCE / 3.5
        raise made[-1]

    monkeypatch.setattr(mapping, "_map_now", map_now)
    monkeypatch.setattr(under_test, "look_at_space", lambda *_: None)
    monkeypatch.setattr(under_test, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda _: None))
    with pytest.raises(raised):
        mapping._map(1)
    assert len(made) == tries


def test_a_thread_that_has_begun_is_waited_for_with_longer_and_longer_pauses(monkeypatch):
    """To look at it, all threads may have to be stopped."""
    access = SimpleNamespace(process=SimpleNamespace(mappings=list), holdings=Holdings(None))
    springboards = SimpleNamespace(reserve_fresh=lambda: None, forget_fresh=lambda: None)
    mapping = Preparation(access, springboards, [], Counting(1), has_slots=lambda _: True)
    pauses = []

    def map_now(_):
        raise under_test._ThreadStarting

    monkeypatch.setattr(mapping, "_map_now", map_now)
    monkeypatch.setattr(under_test, "look_at_space", lambda *_: None)
    monkeypatch.setattr(under_test, "time", SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append))
    with pytest.raises(under_test.ThreadSlotUnusable):
        mapping._map(1)
    assert pauses[:7] == [0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1]
    assert set(pauses[7:]) == {0.1}
    assert len(pauses) < 20


def test_only_functions_without_a_record_need_one():
    """Those that were measured before their library was unloaded, and are loaded again, have one."""
    known, fresh = TimingGroup("bank", 8), TimingGroup()
    hooks = [Hook(kind, group) for group in (known, fresh) for kind in (ActionKind.ENTER, ActionKind.LEAVE)]
    assert demand(hooks[:2]).records == 0
    assert demand(hooks).records == 1
