"""When the time that ``offcpu`` measures begins: once all threads are where they were before they were stopped."""

import time
from types import SimpleNamespace

from anyprobe.probes.waiting import window
from anyprobe.probes.waiting.window import SleepWindow, _Thread

ASLEEP = ("0", "0x0", "0x7ffd", "0x1000")
ASLEEP_TID, BUSY_TID, LATE_S = 10, 11, 0.15


def test_a_thread_that_gets_a_processor_late_is_waited_for_and_a_busy_one_is_not(monkeypatch):
    began = time.monotonic()

    def threads(_, wanted=None):
        passed = time.monotonic() - began
        both = {
            ASLEEP_TID: _Thread(5_000, 0, 0, 0, ASLEEP if passed > LATE_S else ()),
            BUSY_TID: _Thread(round(passed * 1e9), 0, 0, 0, ()),
        }
        return {tid: each for tid, each in both.items() if wanted is None or tid in wanted}

    monkeypatch.setattr(window, "_threads", threads)
    made = SleepWindow(SimpleNamespace(pid=10), {})
    assert made._threads[ASLEEP_TID].call == ASLEEP
    assert LATE_S <= time.monotonic() - began < window._RESUMED  # not for ever for the sake of the busy one
    assert made._threads.keys() == {ASLEEP_TID, BUSY_TID}


def test_a_thread_that_ends_meanwhile_is_not_waited_for(monkeypatch):
    looks = iter([{10: _Thread(0, 0, 0, 0, ())}])
    monkeypatch.setattr(window, "_threads", lambda *_: next(looks, {}))
    began = time.monotonic()
    SleepWindow(SimpleNamespace(pid=10), {})
    assert time.monotonic() - began < window._RESUMED / 2
