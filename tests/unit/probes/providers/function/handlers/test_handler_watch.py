"""Signal handlers that were set since the last look: asked for again where no thread could be asked."""

from types import SimpleNamespace

import pytest

from anyprobe.probes.providers.function.handlers import handler_watch


class View:
    """A view of a program that handles one signal, whose threads cannot be asked until they can."""

    settings = None

    def __init__(self):
        self.could_ask, self.asked = True, 0

    def look(self):
        return 1 << 9

    def find_by(self, *_):
        pass

    def since_set(self):
        self.asked += 1
        return []

    def planned_amiss(self):
        return []

    def complaints(self, *, of_asking):
        return ["could not be asked"] if of_asking and not self.could_ask else []


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(handler_watch, "_REST", 0.0)
    view = View()
    splicing = SimpleNamespace(view=view, engine=SimpleNamespace(change=lambda edits: None))
    return view, handler_watch.HandlerWatch(splicing, None, None)


def test_nothing_is_asked_where_nothing_was_set(watched):
    view, watch = watched
    assert [watch.follow(often=True) for _ in range(3)] == [[]] * 3
    assert view.asked == 0


def test_what_could_not_be_asked_is_asked_again_and_said_if_it_stays_so(watched):
    """As where the only thread waits for children by ``vfork`` most of the time."""
    view, watch = watched
    view.could_ask = False
    said = [watch.follow(often=True) for _ in range(6)]
    assert view.asked == 6
    assert [bool(each) for each in said] == [False] * 4 + [True] * 2
    view.could_ask = True
    assert watch.follow(often=True) == []
    assert view.asked == 6
