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
from support.perfetto_trace import slices

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
