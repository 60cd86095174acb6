"""What a session says of signal handlers that it cannot see to."""

from types import SimpleNamespace

import pytest

from anyprobe.core.errors import StopTimeout, TargetExited
from anyprobe.splice import signalview
from anyprobe.splice.planned import Strategy


@pytest.mark.parametrize(("error", "complaints"), [(TargetExited(7), 0), (StopTimeout("thread 8 does not stop"), 1)])
def test_that_handlers_could_not_be_asked_matters_to_the_living(monkeypatch, error, complaints):
    def borrow():
        raise error

    engine = SimpleNamespace(process=SimpleNamespace(borrow=borrow), faults=SimpleNamespace(wanted=False), live=None)
    view = signalview.SignalView(engine)
    view.locate = lambda address: None
    monkeypatch.setattr(signalview, "handled_signals", lambda process: 1 << 9)
    view.look()
    assert list(view.with_handlers([SimpleNamespace(added=["something"])])) != []
    assert len(list(view.complaints())) == complaints


SITE, BOARD = 0x401000, 0x401010


class Splice(SimpleNamespace):
    __hash__ = object.__hash__


def splice_at(address, *, board=False):
    planned = SimpleNamespace(strategy=Strategy.JUMP, wants=[])
    return Splice(address=address, is_springboard=board, patch=None, planned=planned, new=bytes(5))


def change(added=(), removed=()):
    return SimpleNamespace(change=SimpleNamespace(added=list(added), removed=list(removed)))


def test_where_a_springboard_has_been_a_site_is_none(monkeypatch):
    """Who is brought back to the site would be taken for one on his way from it, and brought back again, for ever."""
    published = []
    table = SimpleNamespace(
        code=range(0x600000, 0x601000), address=0x700000, publish=lambda index: [published.append(index)]
    )
    home = SimpleNamespace(table=table, add=lambda *_: set())
    engine = SimpleNamespace(
        faults=SimpleNamespace(wanted=True), modules=[], neighbourhoods=["first"],
        springboards=SimpleNamespace(pages=lambda: ()),
    )  # fmt: skip
    view = signalview.SignalView(engine)
    monkeypatch.setattr(view, "_described", lambda _: home)
    board = splice_at(BOARD, board=True)
    view.describe([change([splice_at(SITE), board])])
    assert (BOARD, 5) in published[-1]
    view.describe([change([splice_at(BOARD)], [board])])
    assert BOARD not in dict(published[-1])
    view.describe([change([splice_at(BOARD, board=True)], [splice_at(BOARD)])])
    assert (BOARD, 5) in published[-1]
