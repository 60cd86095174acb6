"""Timelines for Perfetto in several files: each can be read by itself, and together they have what one has."""

import io
import itertools

import numpy as np
import pytest

from anyprobe.data.archives import runs
from anyprobe.data.calls.recorded import END_BITS, ENTRY, RETURN, Events
from anyprobe.data.calls.recording import Recording
from anyprobe.data.calls.values import Instant, instants_line
from anyprobe.exporters import perfetto
from support.perfetto_trace import counters, slices

ROUNDS = 300


@pytest.fixture
def path(tmp_path):
    """A recording in which a call is open all the time, on one of two threads, in lines of 60 events."""
    rows = [(1000, 0, 0 << END_BITS | ENTRY, 4096)]
    for at in range(ROUNDS):
        now, thread = 1010 + 10 * at, at % 2
        rows += [(now, thread, 1 << END_BITS | ENTRY, 4000), (now + 4, thread, 1 << END_BITS | RETURN, 4000)]
    rows.append((1010 + 10 * ROUNDS, 0, 0 << END_BITS | RETURN, 4096))
    columns = list(zip(*rows, strict=True))
    events = Events(np.array(columns[0], np.int64), *(np.array(each, np.uint32) for each in columns[1:]))
    found = tmp_path / "run.aprobe"
    with found.open("wb") as file:
        writer = runs.Writer(file, runs.RunInfo("record"))
        writer.put({"functions": [["a.out", "whole", False], ["a.out", "part", False]]})
        writer.put({"threads": [[7, 7, "main"], [7, 8, "other"]]})
        writer.put({"instants": instants_line([Instant(1502, 1, "usdt:a/b:c", {"arg0": 3})])})
        for first, last in itertools.pairwise((0, *range(1, len(events), 60), len(events))):
            writer.put({"events": events.part(slice(first, last)).document()})
        writer.put({"end": {"builds": {}}})
    return str(found)


def drawn(path, most):
    files = []

    def more():
        while True:
            files.append(io.BytesIO())
            yield files[-1]

    perfetto.write(path, Recording(path), more(), most)
    return [slices(each.getvalue()) for each in files]


def test_several_files_have_what_one_has(path):
    ((tracks, whole),) = drawn(path, 0)
    parts = drawn(path, 4000)
    assert len(parts) > 3
    for own, _ in parts:
        assert {each.thread.tid for each in own.values() if each.HasField("thread")} <= {7, 8}
    plain = [each for _, found in parts for each in found if each["name"] != "whole"]

    def shown(found):
        return sorted((each["name"], each["track"], each["begin"], each["end"], each["depth"]) for each in found)

    assert shown(plain) == shown(each for each in whole if each["name"] != "whole")
    open_ones = [each for _, found in parts for each in found if each["name"] == "whole"]
    assert len(open_ones) == len(parts)
    assert (open_ones[0]["begin"], open_ones[-1]["end"]) == (1000, 1010 + 10 * ROUNDS)
    for one, other in itertools.pairwise(open_ones):
        assert one["end"] == other["begin"]
        assert one["said"].endswith("goes on in the next file")
        assert other["values"]["began"] == f"{(other['begin'] - 1000) / 1e3:,.3f} µs before, in an earlier file"
    assert tracks


def test_rates_of_processes_are_those_of_the_calls_that_begin(tmp_path):
    numbers, step = np.random.default_rng(3), perfetto.RATE_NS
    begins = np.sort(numbers.integers(5_000, 5_000 + 40 * step, 3000))
    begins = begins[(begins < 5_000 + 11 * step) | (begins > 5_000 + 19 * step)]
    threads = numbers.integers(0, 3, len(begins)).astype(np.uint32)
    pids, path = np.array([7, 7, 9]), tmp_path / "run.aprobe"
    with path.open("wb") as file:
        writer = runs.Writer(file, runs.RunInfo("record"))
        writer.put({"functions": [["a.out", "f", False]]})
        writer.put({"threads": [[7, 7, "one"], [7, 8, "two"], [9, 9, "other"]]})
        for first in range(0, len(begins), 500):
            part = slice(first, first + 500)
            zeros = np.zeros(len(begins[part]), np.uint32)
            events = Events(begins[part], threads[part], zeros + ENTRY, zeros + 4096)
            writer.put({"events": events.document()})
        writer.put({"end": {"builds": {}}})
    for most in (0, 20_000):
        files = [io.BytesIO() for _ in range(200)]
        perfetto.write(str(path), Recording(str(path)), iter(files), most)
        found = {}
        for each in files:
            for (pid, name, unit), values in counters(each.getvalue()).items():
                assert (name, unit) == ("calls begun", "calls/s")
                found.setdefault(pid, []).extend(values)
        assert found.keys() == {7, 9}
        for pid, values in found.items():
            own = begins[pids[threads] == pid]
            shown = np.zeros(60, np.int64)
            for (time, value), (until, _) in itertools.pairwise([*values, (begins[0] + 60 * step, 0)]):
                assert (time - begins[0]) % step == 0
                shown[(time - begins[0]) // step : (until - begins[0]) // step] = value
            counted = np.bincount((own - begins[0]) // step, minlength=60)
            assert (shown == counted * (10**9 // step)).all()
