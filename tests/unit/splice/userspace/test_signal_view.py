"""What a session says of signal handlers that it cannot see to."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from anyprobe.core.errors import StopTimeout, TargetExited
from anyprobe.splice.plan.splices import Strategy
from anyprobe.splice.userspace import signal_view


def view_of(*, faults_wanted, calls=nullcontext, handled=0):
    """Return the view of a program in which nothing is spliced yet."""
    process = SimpleNamespace(handled_signals=lambda: handled)
    return signal_view.SignalView(
        process, SimpleNamespace(code_regions=["first"]), [], SimpleNamespace(pages=lambda: ()),
        None, SimpleNamespace(wanted=faults_wanted), clobbers=None,
        hides_faults=lambda *_: False, calls=calls,
    )  # fmt: skip


@pytest.mark.parametrize(("error", "complaints"), [(TargetExited(7), 0), (StopTimeout("thread 8 does not stop"), 1)])
def test_that_handlers_could_not_be_asked_matters_to_the_living(error, complaints):
    def calls():
        raise error

    view = view_of(faults_wanted=False, calls=calls, handled=1 << 9)
    view.find_by(lambda address: None, lambda: None)
    view.look()
    assert list(view.with_handlers([SimpleNamespace(added=["something"])])) != []
    assert view.could_ask is not bool(complaints)
    assert view.complaints(of_asking=False) == []
    assert len(list(view.complaints())) == complaints


SITE, BOARD = 0x401000, 0x401010


class Splice(SimpleNamespace):
    __hash__ = object.__hash__


def splice_at(address, *, board=False):
    planned = SimpleNamespace(strategy=Strategy.JUMP, wants=[])
    return Splice(address=address, is_springboard=board, patch=None, planned=planned, new=bytes(5))


def change(added=(), removed=()):
    changed = SimpleNamespace(added=list(added), removed=list(removed))
    return SimpleNamespace(change=changed, state=SimpleNamespace(splices=list(removed)))


class Tables:
    """What has been published."""

    def __init__(self, monkeypatch, room=lambda: True):
        self.published, self.latest = [], {}
        table = SimpleNamespace(
            code=range(0x600000, 0x601000), address=0x700000, index=self.index, point_to=self.point_to
        )
        home = SimpleNamespace(table=table, add=lambda *_: set())
        self.room, self.view = room, view_of(faults_wanted=True)
        monkeypatch.setattr(self.view, "_described", lambda _: home)

    def index(self, entries):
        self.published.append(dict(entries))
        return len(self.published) if self.room() else 0

    def point_to(self, index):
        self.latest = self.published[index - 1]

    def make(self, edit, *, refused=False):
        """Make a change; return what is published on the way, and afterwards."""
        self.view.describe([edit])
        before = self.latest
        if not refused:
            edit.state.splices = edit.change.added
        self.view.settle([edit])
        return before, self.latest


def test_where_a_springboard_has_been_a_site_is_none(monkeypatch):
    """Who is brought back to the site would be taken for one on his way from it, and brought back again, for ever."""
    tables, board = Tables(monkeypatch), splice_at(BOARD, board=True)
    assert all(each[BOARD] == 5 for each in tables.make(change([splice_at(SITE), board])))
    assert not any(BOARD in each for each in tables.make(change([splice_at(BOARD)], [board])))
    before, after = tables.make(change([splice_at(BOARD, board=True)], [splice_at(BOARD)]))
    assert BOARD not in before
    assert after[BOARD] == 5


def test_a_springboard_that_goes_is_one_until_it_has_gone(monkeypatch):
    """A thread may stand at it for as long as the change is not made, and for good if it is refused."""
    tables, board = Tables(monkeypatch), splice_at(BOARD, board=True)
    tables.make(change([splice_at(SITE), board]))
    before, after = tables.make(change([], [board]), refused=True)
    assert before[BOARD] == after[BOARD] == 5
    before, after = tables.make(change([], [board]))
    assert before[BOARD] == 5
    assert BOARD not in after


def test_springboards_that_are_not_listed_are_complained_of(monkeypatch):
    tables = Tables(monkeypatch, room=lambda: False)
    tables.make(change([splice_at(SITE), splice_at(BOARD, board=True)]))
    assert tables.view.complaints() == [
        "signal handlers see some pcs of probes as they are: there is no room to describe them"
    ]
