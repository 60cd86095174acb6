"""The last seconds of a recording: what is kept when a slow call is found among events that come much later."""

import numpy as np
import pytest

from anyprobe.cli.events.flight import Flight
from anyprobe.data.archives.runs import RunInfo
from anyprobe.data.calls.recorded import END_BITS, ENTRY, RETURN, Events

MS = 1_000_000
START = 10_000 * MS


@pytest.fixture
def flight():
    return Flight(0.3, "run.aprobe", slow_ns=50 * MS)


def came(flight, *events):
    """Keep a line of events, each with its time in ms, and return whether a file is due."""
    times, what = zip(*events, strict=True)
    count = len(events)
    line = Events(
        np.array(times, np.int64) * MS + START,
        np.zeros(count, np.uint32),
        np.array([5 << END_BITS | each for each in what], np.uint32),
        np.full(count, 512, np.uint32),
    )
    flight.keep(int(line.times[-1]), len(line), str(times[0]).encode())
    is_due = flight.is_due(line, set())
    flight.let_go()
    return is_due


def kept(flight):
    return [int(frame) for _, _, frame in flight._lines]


def quick(at):
    return (at, ENTRY), (at + 1, RETURN)


def test_the_beginning_of_a_slow_call_is_kept_however_late_its_end_is_seen(flight):
    assert not came(flight, *quick(0), *quick(400))
    assert not came(flight, *quick(500), (900, ENTRY))
    assert came(flight, (960, RETURN), *quick(1450))
    assert kept(flight) == [500, 960]
    assert flight.overwritten == 4


def test_what_is_older_goes_where_no_call_was_slow(flight):
    assert not came(flight, *quick(0))
    assert not came(flight, *quick(500))
    assert kept(flight) == [500]


def test_a_slow_call_soon_after_another_is_in_the_next_file(flight, tmp_path, monkeypatch):
    monkeypatch.setattr(flight, "path", str(tmp_path / "run.aprobe"))
    assert came(flight, (0, ENTRY), (60, RETURN))
    flight.dump(RunInfo("record"), [])
    assert not came(flight, (100, ENTRY), (200, RETURN))
    assert not came(flight, *quick(300))
    assert came(flight, *quick(700))
    assert 100 in kept(flight)
    flight.dump(RunInfo("record"), [])
    assert not came(flight, *quick(1200))
    assert kept(flight) == [1200]
