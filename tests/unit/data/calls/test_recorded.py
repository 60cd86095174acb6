"""Recordings in archives: what was written is read again, and damaged files are said to be so."""

import random

import numpy as np
import pytest

from anyprobe.core.errors import UsageError
from anyprobe.data.archives import runs
from anyprobe.data.calls.recorded import Events, Thread
from anyprobe.data.calls.recording import Recording


def events(count, seed=1):
    numbers = np.random.default_rng(seed)
    return Events(
        np.cumsum(numbers.integers(0, 1 << 20, count)) + (1 << 44),
        numbers.integers(0, 2, count).astype(np.uint32),
        numbers.integers(0, 8, count).astype(np.uint32) & ~np.uint32(2),
        numbers.integers(0, 1 << 32, count).astype(np.uint32),
    )


def written(tmp_path, *parts, end=True):
    path = tmp_path / "run.aprobe"
    with path.open("wb") as file:
        writer = runs.Writer(file, runs.RunInfo("record"))
        writer.put({"functions": [["a.out", "f", False], ["a.out", "g", True]]})
        writer.put({"threads": [[7, 7, "main"], [7, 8, "other"]]})
        for each in parts:
            writer.put({"events": each.document()})
        writer.put({"lost": {"pid": 7, "count": 3}})
        if end:
            writer.put({"end": {"builds": {}}})
    return path


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_events_are_read_as_they_were_written(tmp_path, count):
    first, second = events(count), events(5, 2)
    recording = Recording(str(written(tmp_path, first, second)))
    found = list(recording.events())
    for own, read in zip((first, second), found, strict=True):
        for name in ("times", "threads", "what", "frames"):
            assert (getattr(own, name) == getattr(read, name)).all()
    assert recording.threads == [Thread(7, 7, "main"), Thread(7, 8, "other")]
    assert recording.lost == [(7, 3, False)]
    assert recording.ended
    assert not recording.damage


def test_a_file_that_was_cut_anywhere_has_the_events_before_that(tmp_path):
    parts = [events(50, seed) for seed in range(4)]
    path = written(tmp_path, *parts)
    whole = path.read_bytes()
    for size in range(0, len(whole) - 4, 3):  # without the last checksum there is nothing to be missed
        path.write_bytes(whole[:size])
        recording = Recording(str(path))
        try:
            found = list(recording.events())
        except UsageError:
            assert size < 200
            continue
        assert not recording.ended
        assert len(found) <= 4
        for own, read in zip(parts, found, strict=False):
            assert (own.times == read.times).all()


def test_damaged_bytes_are_found_and_what_was_read_before_is_right(tmp_path):
    parts = [events(50, seed) for seed in range(4)]
    path = written(tmp_path, *parts)
    whole = path.read_bytes()
    numbers = random.Random(4)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(numbers.randint(1, 3)):
            damaged[numbers.randrange(len(damaged))] ^= 1 << numbers.randrange(8)
        path.write_bytes(damaged)
        recording = Recording(str(path))
        try:
            found = list(recording.events())
        except UsageError:
            continue
        assert recording.damage or not recording.ended
        for own, read in zip(parts, found, strict=False):
            assert (own.times == read.times).all(), "each line has a checksum"


@pytest.mark.parametrize(
    "document",
    [
        {"count": 1 << 40}, {"first": -1}, {"first": "x"}, {"times": [3, ""]}, {"times": [1, "!"]}, {"times": None},
        {"threads": [1, "//////"]}, {"what": [4, ""]}, {"frames": [1, 7]}, {"count": -1}, {"count": True},
    ],
)  # fmt: skip
def test_lines_that_lie_are_refused(tmp_path, document):
    path = tmp_path / "run.aprobe"
    with path.open("wb") as file:
        writer = runs.Writer(file, runs.RunInfo("record"))
        writer.put(
            {"functions": [["a.out", "f", False], ["a.out", "g", True]], "threads": [[7, 7, "main"], [7, 8, "other"]]}
        )
        writer.put({"events": events(3).document() | document})
    recording = Recording(str(path))
    assert list(recording.events()) == []
    assert recording.damage


def test_what_is_no_archive_is_refused_by_its_name(tmp_path):
    path = tmp_path / "text"
    path.write_text("hello")
    with pytest.raises(UsageError, match="text is no archive"):
        list(Recording(str(path)).events())


def test_an_archive_of_other_results_has_no_events(tmp_path):
    path = tmp_path / "run.aprobe"
    with path.open("wb") as file:
        runs.write(file, runs.Run(runs.RunInfo("count")))
    assert list(Recording(str(path)).events()) == []
