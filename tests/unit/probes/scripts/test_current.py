"""Which session ``from anyprobe import session`` stands for."""

import threading

import pytest

import anyprobe
from anyprobe import UsageError, session
from anyprobe.probes.scripts import current


class Session:
    """What a session is to its stand-in."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        current.enter(self)
        return self

    def __exit__(self, *_):
        current.leave(self)


def in_a_thread(function):
    found = []

    def run():
        try:
            found.append(function())
        except UsageError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_it_is_the_innermost():
    with Session(1):
        assert session.pid == 1
        with Session(2):
            assert session.pid == 2
        assert session.pid == 1


def test_without_one_the_message_says_how_to_get_one():
    with pytest.raises(UsageError, match="anyprobe script FILE"):
        _ = session.pid
    assert "none" in repr(session)
    assert not hasattr(session, "__wrapped__")


def test_each_thread_has_its_own():
    with Session(1):
        assert isinstance(in_a_thread(lambda: session.pid), UsageError)


def test_that_of_a_script_is_everybodys():
    with current.for_script(Session(3)):
        assert in_a_thread(lambda: session.pid) == 3
        with Session(4):
            assert session.pid == 4
            assert in_a_thread(lambda: session.pid) == 3
        assert session.pid == 3


def test_that_of_a_script_goes_before_those_entered_earlier():
    with Session(1), Session(2) as second, current.for_script(second), current.for_script(Session(3)):
        assert session.pid == 3
    with Session(1) as first, Session(2):
        with current.for_script(first):
            assert session.pid == 1
        assert session.pid == 2


def test_sessions_may_end_in_any_order():
    first, second = Session(1), Session(2)
    current.enter(first)
    current.enter(second)
    current.leave(first)
    assert session.pid == 2
    current.leave(second)
    with pytest.raises(UsageError):
        _ = session.pid


def test_it_can_be_set_and_listed():
    with Session(1) as opened:
        session.pid = 5
        assert opened.pid == 5
    assert {"entry", "ret", "call", "snapshot"} <= set(dir(session))
    assert anyprobe.session is session
