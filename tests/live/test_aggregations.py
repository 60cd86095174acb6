"""What handlers have counted in eight threads, against a recomputation: from the program's rule, and from records."""

import os

import numpy as np
import pytest

import anyprobe
from anyprobe import Avg, Count, Hist, LQuantize, Map, Max, Min, Quantize, Stddev, Sum, emit, i32, i64, u64
from anyprobe.data.aggregates.records import ParquetWriter
from anyprobe.data.layouts import buckets
from support.driver import build, started
from support.reference.bucket_index import linear_index, log_linear_index

pytestmark = pytest.mark.live
THREADS, CALLS, KEYS = 8, 3_500, 1000


def steps_of(rounds):
    """Return the values and keys of all calls, as aggregated.c computes them."""
    steps = np.arange(rounds * THREADS * CALLS, dtype=np.uint64)
    z = (steps + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = z ^ (z >> np.uint64(31))
    return mixed >> (steps % np.uint64(64)), mixed % np.uint64(KEYS)


def exact_sum(values):
    """Return the sum of 64-bit words as it is, beyond 64 bits."""
    high, low = values.astype(np.uint64) >> np.uint64(32), values.astype(np.uint64) & np.uint64(0xFFFFFFFF)
    return (int(high.sum()) << 32) + int(low.sum())


def check_cell(cell, values):
    assert cell.count == len(values)
    assert cell.sum is None or cell.sum == exact_sum(values)
    assert cell.min is None or cell.min == int(values.min())
    assert cell.max is None or cell.max == int(values.max())
    if cell.squares is not None:
        assert cell.squares == sum(value * value for value in values.tolist())


def by_bucket(cell):
    return {(low, high): count for low, high, count in cell.buckets}


def counted(bounds, indices):
    found = np.bincount(np.array(indices), minlength=len(bounds)).tolist()
    return {bounds[index]: count for index, count in enumerate(found) if count}


def test_ten_million_hits_of_eight_threads():
    every, powers, fine = Avg("every"), Quantize("powers"), Hist("fine")
    least, most, keyed = Min("least"), Max("most"), Sum("keyed", by=("key",), capacity=KEYS)
    with started(build("aggregated.c")) as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:work")
        def on_work(value: u64, key: u64):
            every.add(value)
            powers.add(value)
            fine.add(value)
            least.add(value)
            most.add(value)
            keyed.add(value, key=(key,))

        own = target.go(358).calls["work"]
        (site,) = session.snapshot().sites
        assert own == 358 * THREADS * CALLS > 10_000_000
        assert (site.hits, site.nmissed) == (own, 0)
        target.finish()
    values, keys = steps_of(358)
    for aggregation in (every, powers, fine, least, most):
        check_cell(aggregation.result().total, values)
    small = values[: 1 << 19]
    lengths = np.array([int(value).bit_length() for value in small.tolist()])
    assert sum(by_bucket(powers.result().total).values()) == own
    assert counted(powers.bounds(), lengths + buckets.ZERO).keys() <= by_bucket(powers.result().total).keys()
    halves = np.zeros((2, KEYS), np.uint64)
    np.add.at(halves[0], keys.astype(np.int64), values & np.uint64(0xFFFFFFFF))
    np.add.at(halves[1], keys.astype(np.int64), values >> np.uint64(32))
    sums = [low + (high << 32) for low, high in zip(*halves.tolist(), strict=True)]
    result = keyed.result()
    assert result.dropped == 0
    assert {key: cell.sum for (key,), cell in result.entries.items()} == dict(enumerate(sums))


def test_aggregations_agree_with_a_full_record_of_the_same_run():
    plain, steps = Hist("plain"), LQuantize("steps", -50, 5000, 50)
    keyed, few = Stddev("keyed", by=("key",), capacity=KEYS), Count("few", by=("key",), capacity=10)
    batches = []
    with started(build("aggregated.c"), "timer") as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:work")
        def on_work(value: u64, key: u64):
            plain.add(value)
            steps.add(i64(value & 8191) - 100)
            keyed.add(value, key=(key,))
            few.add(key=(key,))
            emit("work", value=value, key=key)

        for _ in range(30):
            own = target.go(1).calls["work"]
            batches += [rows for _, _, rows in session.handling.records()]
        batches += [rows for _, _, rows in session.handling.records(final=True)]
        (site,) = session.snapshot().sites
        target.finish()
    assert own > 30 * THREADS * CALLS
    assert site.hits + site.nmissed == own
    records = np.concatenate(batches)
    assert len(records) == site.hits
    check_cell(plain.result().total, records["value"])
    indices = [log_linear_index(value) for value in records["value"].tolist()]
    assert by_bucket(plain.result().total) == counted(plain.bounds(), indices)
    limited = (records["value"] & np.uint64(8191)).astype(np.int64) - 100
    indices = [linear_index(value, -50, 50, steps.levels) for value in limited.tolist()]
    assert by_bucket(steps.result().total) == counted(steps.bounds(), indices)
    order = np.argsort(records["key"], kind="stable")
    values = records["value"][order]
    ends = np.searchsorted(records["key"][order], np.arange(KEYS), side="right").tolist()
    for (key,), cell in keyed.result().entries.items():
        check_cell(cell, values[ends[key - 1] if key else 0 : ends[key]])
    assert few.result().total.count + few.result().dropped == site.hits
    assert few.result().dropped > 0


def test_clear_and_trunc_while_the_program_runs():
    keyed = Count("keyed", by=("key",), capacity=KEYS)
    with started(build("aggregated.c")) as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:work")
        def on_work(value: u64, key: u64):
            keyed.add(key=(key % 10,))

        target.go(1)
        keyed.clear()
        assert keyed.result().total.count == 0
        assert len(keyed.result().entries) == 10
        target.go(2)
        assert keyed.result().total.count == 2 * THREADS * CALLS
        keyed.trunc(3)
        assert len(keyed.result().entries) == 3
        before = keyed.result().total.count
        target.go(1)
        assert keyed.result().total.count == before + THREADS * CALLS
        assert len(session.snapshot().as_json()["aggregations"]["keyed"]) == 10
        target.finish()


def test_reading_takes_no_memory_and_rings_have_theirs_before_they_are_written():
    fine = Hist("fine")
    with started(build("aggregated.c")) as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:work")
        def on_work(value: u64, key: u64):
            fine.add(value)
            emit("work", value=value)

        ring = next(store for key, store in session.handling._stores.items() if key == "work")
        (view,) = fine.views
        assert os.fstat(ring.arena.descriptor).st_blocks * 512 >= 1 << 19
        assert not view._touched()
        target.go(1)
        for _ in range(3):
            assert fine.result().total.count == THREADS * CALLS
        rows = sum(touched.stop - touched.start for touched in view._touched())
        assert 1 <= rows <= THREADS
        target.finish()
    assert fine.result().total.count == THREADS * CALLS


def test_what_is_lost_is_shown_by_name_and_cause():
    small = Map("small", capacity=10)
    with started(build("aggregated.c")) as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:work")
        def on_work(value: u64, key: u64):
            small[key] = value
            emit("work", value=value, key=key)

        for _ in range(4):
            target.go(1)
        snapshot = session.snapshot()
        kept = sum(len(rows) for _, _, rows in session.handling.records(final=True))
        target.finish()
    hits = 4 * THREADS * CALLS
    assert snapshot.dropped["work"] == {"ring full": hits - kept} if kept < hits else "work" not in snapshot.dropped
    assert 10 <= len(small.items()) < KEYS
    assert 0 < snapshot.dropped["small"]["no room"] < hits


def test_handlers_that_need_the_time_are_refused_where_the_program_may_not_read_it():
    with started(build("no_timestamps.c")) as target, anyprobe.attach(target.pid) as session:
        calls, times = Count("calls"), Sum("times")
        with pytest.raises(anyprobe.UnsupportedTarget, match="may not read the time stamp counter"):

            @session.entry("a.out:work")
            def on_record(x: i32):
                emit("work", x=x)

        with pytest.raises(anyprobe.UnsupportedTarget, match="may not read the time stamp counter"):

            @session.entry("a.out:work")
            def on_time(ctx, x: i32):
                times.add(ctx.now)

        @session.entry("a.out:work")
        def on_count(x: i32):
            calls.add()

        before = target.counts.calls.get("work", 0)
        after = target.go(2).calls["work"]
        assert calls.result().total.count == after - before
        target.finish()


def test_times_of_records_are_those_of_handlers():
    with started(build("aggregated.c")) as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:work")
        def on_work(ctx, value: u64):
            if value % 64 == 0:
                emit("work", now=ctx.now)

        target.go(1)
        ((_, _, rows),) = session.handling.records(final=True)
        target.finish()
    late = rows["ts"].astype(np.int64) - rows["now"].astype(np.int64)
    assert len(rows) > 100
    # both are nanoseconds of one clock, and the record's is taken last
    assert 0 <= late.min() <= np.median(late) < 2000


def test_records_are_read_as_arrays_rows_and_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is optional and not installed")
    with started(build("aggregated.c")) as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:work")
        def on_work(ctx, value: u64, key: u64):
            if key < 10:
                emit("low", key=key, tid=ctx.tid)
            elif key > 989:
                emit("high", value=value)

        target.go(1)
        arrays = session.records()
        target.go(1)
        rows = list(session.rows(final=True))
        target.finish()
    assert arrays.keys() == {"low", "high"}
    assert not session.records()["low"].size
    _, keys = steps_of(2)
    first = keys[: THREADS * CALLS]
    assert (len(arrays["low"]), len(arrays["high"])) == ((first < 10).sum(), (first > 989).sum())
    assert len(rows) == ((keys < 10) | (keys > 989)).sum() - sum(map(len, arrays.values()))
    times = [fields["ts"] for _, fields in rows]
    assert times == sorted(times)
    assert times[0] > arrays["low"]["ts"].max()
    with ParquetWriter(str(tmp_path / "low.parquet")) as writer:
        writer.write(arrays["low"])
    assert parquet.read_table(tmp_path / "low.parquet").column("key").to_pylist() == arrays["low"]["key"].tolist()
