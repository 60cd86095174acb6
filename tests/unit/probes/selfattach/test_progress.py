"""What takes long is told of, and nothing else."""

import io
import threading
from concurrent.futures import Future

import pytest

from anyprobe.probes.selfattach import progress
from anyprobe.probes.selfattach.progress import await_with_progress, line_on_terminal


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.02)


def test_what_is_done_at_once_is_not_told_of():
    answer, told = Future(), []
    answer.set_result(1)
    await_with_progress(answer, "count", lambda *each: told.append(each))
    assert told == []


def test_what_takes_long_is_told_of_until_it_is_done():
    answer, told = Future(), []

    def tell(what, seconds, done):
        told.append((what, done))
        assert seconds > 0
        if len(told) == 3:
            threading.Thread(target=answer.set_result, args=(1,)).start()

    await_with_progress(answer, "count", tell)
    assert told[:3] == [("arming", False)] * 3
    assert told[-1] == ("arming", True)
    assert answer.result() == 1


def test_what_it_raises_is_a_warning(recwarn):
    answer = Future()

    def tell(what, seconds, done):
        answer.set_exception(KeyError("the answer"))
        raise ValueError("mine")

    await_with_progress(answer, "limit_overhead", tell)
    assert "ValueError('mine')" in str(recwarn.pop(RuntimeWarning).message)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_has_one_line_that_goes_away(monkeypatch, terminal):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", stream)
    line_on_terminal("arming", 0.52, False)
    line_on_terminal("arming", 1.0, True)
    assert stream.getvalue() == ("\r\x1b[Kanyprobe: arming, 0.5 s\r\x1b[K" if terminal else "")
