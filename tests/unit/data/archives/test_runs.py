"""Archives: what is written is read again, whole, cut short, damaged, or by another version."""

import io
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from zstandard import ZstdCompressor, ZstdDecompressor

from anyprobe.core.errors import UsageError
from anyprobe.data.archives import runs
from anyprobe.data.archives.runs import Run, RunInfo
from anyprobe.data.snapshots.interval import since
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.profile import Profile, ProfiledStack, ProfileFrame
from support.sample_snapshots import site, snapshot, timing

KEPT = Path(__file__).parents[3] / "cases" / "version-1.aprobe"
INFO = RunInfo("time", ("time", "libc:malloc"), machine={"host": "one"}, version="0.1.0")
RUN = Run(
    INFO,
    (snapshot(functions=(timing(),)), snapshot(sites=())),
    builds={"libc.so.6": "abc"},
    records={"records": {"r": [{"ts_ns": 1}]}},
)


def written(run=RUN):
    stream = io.BytesIO()
    runs.write(stream, run)
    return stream.getvalue()


@pytest.fixture
def read(tmp_path):
    def read_it(data):
        path = tmp_path / "run.aprobe"
        path.write_bytes(data)
        return runs.read(str(path))

    return read_it


def lines_of(data):
    return ZstdDecompressor().stream_reader(data, read_across_frames=True).read().splitlines(keepends=True)


def packed(lines):
    return b"".join(ZstdCompressor().compress(line) for line in lines)


def sampled(**changes):
    stack = ProfiledStack((ProfileFrame("a", "f"),), 3)
    parts = {"hz": 99, "stacks": (stack,), "lost": 0, "kernel": True, "processor_s": 0.5}
    return Profile((TargetInfo(7, "/bin/a"),), (), 1.0, **(parts | changes))


def test_a_run_comes_back_as_it_was(read):
    assert read(written()) == RUN
    assert read(written(Run(INFO, profile=sampled()))).profile == sampled()


def test_an_archive_is_lines_of_json_for_any_tool():
    documents = [json.loads(line) for line in lines_of(written())]
    assert [next(iter(each)) for each in documents] == ["format", "snapshot", "snapshot", "records", "end"]
    assert (documents[0]["format"], documents[0]["version"]) == ("anyprobe-archive", 1)
    assert documents[1]["snapshot"]["functions"][0]["count"] == 100


def test_the_first_archive_is_read_for_ever():
    """The file was written when the format was new, and is never written again."""
    run = runs.read(str(KEPT))
    assert (run.info.command, run.info.version, run.warnings) == ("time", "0.1.0", ())
    (one,) = run.snapshots
    assert [(each.function, each.count, round(each.sum_ns)) for each in one.functions] == [
        ("malloc", 100, 15000), ("free", 100, 15000)
    ]  # fmt: skip
    assert one.functions[0].p50_ns == 20.0
    assert [(each.function, each.hits) for each in one.sites] == [("malloc", 1), ("free", 2)]
    assert one.tree[0].calls[0].function == "g"
    assert one.aggregation("h")[5, "a"].sum == 6
    assert one.coverage.modules[0].functions[0].blocks == {0: 3, 4: None}
    assert [each.hits for each in run.series] == [3]
    assert run.builds == {"libc.so.6": "abc"}


def test_a_run_that_was_killed_has_its_intervals(read):
    before, after = snapshot(sites=(site("free", 1),)), snapshot(sites=(site("free", 5),), duration_s=7.0)
    run = Run(INFO, (after,), (since(before, None, "1"), since(after, before, "2")))
    lines = lines_of(written(run))
    for end in (len(lines) - 2, len(lines) - 1):  # without results, or in the middle of them
        cut = read(packed(lines[:end]))
        assert "ends early" in cut.warnings[0]
        assert cut.snapshots[0].hits == 5
    assert cut.snapshots[0].duration_s == 7.0
    with pytest.raises(UsageError, match="ends before there are results"):
        read(packed(lines[:1]))


def test_a_version_to_come_is_one_line(read):
    lines = lines_of(written(replace(RUN, info=replace(INFO, version="9.1"))))
    with pytest.raises(UsageError, match=r"run.aprobe is an archive of version 2, by anyprobe 9.1; this one reads 1$"):
        read(packed([lines[0].replace(b'"version":1', b'"version":2'), b'{"anything": 1}\n']))


def test_what_a_later_anyprobe_has_added_is_left_out_and_told(read):
    lines = lines_of(written())
    lines[1] = lines[1].replace(b'{"snapshot":{', b'{"mood":1,"snapshot":{"colour":2,')
    run = read(packed(lines))
    assert run.snapshots == RUN.snapshots
    assert run.warnings[0].endswith(
        "was written by anyprobe 0.1.0 and has 2 fields not known here: Snapshot.colour, mood"
    )


@pytest.mark.parametrize(
    "data", [b"", b"abc", b"\x28\xb5\x2f\xfd", packed([b"{}\n"]), packed([b"[1]\n"]), packed([b"\0" * 3_000_000])]
)
def test_what_is_no_archive_is_one_line(read, data):
    with pytest.raises(UsageError, match="is no archive of anyprobe"):
        read(data)


def test_a_line_without_an_end_is_not_read_for_ever(read, monkeypatch):
    monkeypatch.setattr(runs, "LONGEST_LINE", 1000)
    with pytest.raises(UsageError, match="is a damaged archive"):
        read(packed([*lines_of(written())[:1], b"x" * 5000]))


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_are_one_line(read, seed):
    """Whatever has happened to a file, it is refused in one line, or gives what it had before the damage."""
    chance, data = random.Random(seed), bytearray(written())
    for _ in range(chance.choice((1, 1, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    if seed % 4 == 0:
        del data[chance.randrange(len(data)) :]
    try:
        run = read(bytes(data))
    except UsageError as error:
        complaint = str(error)
    else:
        complaint = "nothing"
        assert all(each in RUN.snapshots for each in run.snapshots)
    assert len(complaint.splitlines()) == 1


@pytest.mark.parametrize("seed", range(200))
def test_damaged_documents_are_one_line_or_can_be_shown(read, seed):
    """Valid frames of JSON that no anyprobe has written."""
    chance, lines = random.Random(seed), [json.loads(line) for line in lines_of(written())]
    places = []

    def collect(value):
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], dict | list):
                collect(value[key])

    for line in lines:
        collect(line)
    inside, key = chance.choice(places)
    inside[key] = chance.choice((None, -1, "x", [], {}, 1e308, True, [[]], {"a": 1}))
    try:
        run = read(packed([json.dumps(line).encode() + b"\n" for line in lines]))
    except UsageError as error:
        complaint = str(error)
    else:
        complaint = "nothing"
        assert all(json.dumps(each.as_json()) for each in run.snapshots)
    assert len(complaint.splitlines()) == 1


def test_runs_are_added_up_with_what_tells_them_apart():
    other = replace(RUN, info=replace(INFO, machine={"host": "two"}), builds={"libc.so.6": "xyz"})
    both = runs.merged([RUN, other])
    assert (both.info.merged, both.info.machine["host"]) == (2, "one, two")
    assert both.snapshots[0].hits == 2 * RUN.snapshots[0].hits
    assert both.records == {"records": {"r": [{"ts_ns": 1}, {"ts_ns": 1}]}}
    assert both.warnings == ("other builds of libc.so.6: functions of the same name are taken for the same",)
    assert runs.merged([both, RUN]).info.merged == 3


def test_the_sum_does_not_depend_on_the_order_and_is_that_of_snapshots():
    clocks = [
        timing(buckets=((low * ns, (low + 1) * ns, low),), count=low, address=1)
        for low, ns in ((70, 1.0), (75, 0.9), (71, 1.0))
    ]
    parts = [Run(INFO, (snapshot(functions=(each, timing("free"))),)) for each in clocks]
    sums = [runs.merged(order).snapshots[0] for order in (parts, parts[::-1], [runs.merged(parts[:2]), parts[2]])]
    pairs = parts[0].snapshots[0].merge(parts[1].snapshots[0]).merge(parts[2].snapshots[0])
    for each in (*sums, pairs):
        assert each.functions[0].buckets == sums[0].functions[0].buckets
        assert {one.function: one.count for one in each.functions} == {"malloc": 70 + 75 + 71, "free": 300}
    assert all(high / low < 1.016 for low, high, _ in sums[0].functions[0].buckets)


def test_many_files_are_added_up_by_several_processes(tmp_path, monkeypatch):
    clocks = [timing(buckets=((70 * ns, 71 * ns, 3),), count=3) for ns in (1.0, 0.9, 1.1, 0.95, 1.0, 0.9, 1.3)]
    paths = [str(tmp_path / f"{number}.aprobe") for number in range(len(clocks))]
    for number, (path, each) in enumerate(zip(paths, clocks, strict=True)):
        machine = {"host": f"h{number % 3}"}
        Path(path).write_bytes(
            written(replace(RUN, info=replace(INFO, machine=machine), snapshots=(snapshot(functions=(each,)),)))
        )
    alone = runs.merged([runs.read(path) for path in paths])
    monkeypatch.setattr(runs, "FEW", 2)
    monkeypatch.setattr(runs, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(runs.os, "sched_getaffinity", lambda _: {0, 1, 2})
    together = runs.merged_of(paths)
    assert together.info.machine["host"] == "h0, h1, h2"
    assert replace(together.info, written=0) == replace(alone.info, written=0)
    assert (together.snapshots, together.builds, together.records) == (alone.snapshots, alone.builds, alone.records)
    Path(paths[5]).write_bytes(b"no archive")
    with pytest.raises(UsageError, match=r"5\.aprobe is no archive"):
        runs.merged_of(paths)
    Path(paths[5]).unlink()
    with pytest.raises(FileNotFoundError, match=r"5\.aprobe"):
        runs.merged_of(paths)


def test_samples_of_different_rates_have_no_sum():
    one, other = (Run(INFO, profile=sampled(hz=hz)) for hz in (99, 199))
    assert runs.merged([one, one]).profile.samples == 6
    with pytest.raises(UsageError, match="different rates"):
        runs.merged([one, other])
    with pytest.raises(UsageError, match="count and time are of different kinds"):
        runs.merged([RUN, replace(RUN, info=replace(INFO, command="count"))])
