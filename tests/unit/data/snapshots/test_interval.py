"""What was counted between two snapshots."""

from dataclasses import replace

import pytest

from anyprobe.data.aggregates.results import AggregationResult, CellValue
from anyprobe.data.snapshots.interval import since
from anyprobe.data.snapshots.processes import ProcessCounts, ProcessInfo, ThreadTimes
from support.sample_snapshots import site, snapshot, timing

KEY = ("libc:malloc", "libc.so.6", "malloc", 0, "entry")


def test_sites_count_what_was_added_and_keep_their_sum():
    before = snapshot(sites=(site("malloc", 100), site("free", 7)), duration_s=1.0)
    after = snapshot(sites=(site("malloc", 150), site("free", 7), site("calloc", 3)), duration_s=3.5)
    between = since(after, before, "10:00:00")
    assert [each.hits for each in between.sites] == [50, 0, 3]
    assert [between.interval.total(each) for each in between.sites] == [150, 7, 3]
    assert (between.duration_s, between.interval.seconds, between.interval.moment) == (2.5, 2.5, "10:00:00")
    assert between.hits == 53


def test_the_first_interval_begins_with_the_session():
    between = since(snapshot(duration_s=5.0), None, "10:00:00")
    assert (between.hits, between.interval.seconds) == (7 + 12345, 5.0)


def test_calls_of_the_interval_have_its_percentiles_though_ticks_are_measured_anew():
    before = timing(count=60, sum_ns=1000.0, buckets=((10.0, 20.0, 50), (1000.0, 1016.0, 10)))
    scale = 1.00001
    after = timing(
        count=100, sum_ns=3000.0, min_ns=10.0, max_ns=1005.0,
        buckets=((10.0 * scale, 20.0 * scale, 50), (20.0, 30.0, 30), (1000.0 * scale, 1016.0 * scale, 20)),
    )  # fmt: skip
    (found,) = since(snapshot(functions=(after,)), snapshot(functions=(before,)), "").functions
    assert [count for _, _, count in found.buckets] == [30, 10]
    assert (found.count, found.sum_ns) == (40, 2000.0)
    assert (found.min_ns, found.max_ns) == (20.0, 1005.0)
    assert 20 <= found.p50_ns <= 30


@pytest.mark.parametrize("kind", ["count", "hist"])
def test_keys_to_which_nothing_was_added_are_left_out(kind):
    def result(**cells):
        entries = {(key,): CellValue(count, sum=10 * count, min=1, max=9) for key, count in cells.items()}
        return AggregationResult("values", kind, ("key",), entries)

    before, after = snapshot(aggregations=(result(a=5, b=2),)), snapshot(aggregations=(result(a=9, b=2, c=1),))
    (found,) = since(after, before, "").aggregations
    assert {key: (cell.count, cell.sum) for key, cell in found.entries.items()} == {("a",): (4, 40), ("c",): (1, 10)}


def test_a_table_that_was_cleared_shows_what_it_has():
    before = snapshot(aggregations=(AggregationResult("x", "count", (), {(): CellValue(9)}),))
    after = snapshot(aggregations=(AggregationResult("x", "count", (), {(): CellValue(3)}),))
    assert since(after, before, "").aggregations[0].entries[()].count == 3


def test_what_was_not_hit_can_be_left_out():
    silent = timing("never", count=0, tail_exits=0, buckets=())
    kept, left_out = snapshot(functions=(timing(), silent)).nonzero()
    assert [each.function for each in kept.sites] == ["free", "malloc"]
    assert [each.function for each in kept.functions] == ["malloc"]
    assert left_out == {"sites": 1, "functions": 1}
    taken_out = replace(site("gone", 0), armed=False)
    assert snapshot(sites=(taken_out,)).nonzero()[0].sites == (taken_out,)


def in_two_processes(count, **more):
    """Return what a process and its child have timed, by thread too."""
    own, child = ProcessInfo(1, "/bin/a", started=5.0), ProcessInfo(2, "/bin/a", started=6.0)
    times = timing(count=count, sum_ns=10.0 * count, buckets=((10.0, 20.0, count),), **more)
    return snapshot(
        processes=(ProcessCounts(own, {KEY: 3 * count}, (times,)), ProcessCounts(child, {KEY: 5}, (timing(),))),
        threads=(ThreadTimes(own, 1, "a", (times,)), ThreadTimes(child, 2, "b", (timing(),))),
    )


def test_processes_and_threads_have_what_was_added():
    between = since(in_two_processes(9), in_two_processes(4), "")
    own, child = between.processes
    assert (own.hits, child.hits) == ({KEY: 15}, {KEY: 0})
    assert [each.count for each in own.functions] == [5]
    assert child.functions == ()
    (thread,) = between.threads
    assert (thread.tid, [each.count for each in thread.functions], thread.functions[0].sum_ns) == (1, [5], 50.0)


def test_a_process_that_is_given_the_number_of_another_has_all_that_it_counted():
    before, after = in_two_processes(9), in_two_processes(4)
    later = replace(after.processes[0].process, started=99.0)
    processes = (replace(after.processes[0], process=later), after.processes[1])
    threads = (replace(after.threads[0], process=later), after.threads[1])
    between = since(replace(after, processes=processes, threads=threads), before, "")
    assert between.processes[0].functions[0].count == 4
    assert between.threads[0].functions[0].count == 4


def test_a_process_that_has_ended_counts_no_more_though_another_one_has_its_number():
    before, after = in_two_processes(9), in_two_processes(9)
    ended, given = before.processes[0], replace(before.processes[0].process, started=99.0)
    new = ProcessCounts(given, {KEY: 4}, (timing(count=2),))
    threads = (*after.threads, ThreadTimes(given, 1, "a", new.functions))
    between = since(replace(after, processes=(*after.processes, new), threads=threads), before, "")
    assert [each.hits for each in between.processes] == [{KEY: 0}, {KEY: 0}, {KEY: 4}]
    assert [(each.process, each.functions[0].count) for each in between.threads] == [(given, 2)]
    unseen = replace(ended, process=replace(ended.process, started=None))
    for first, second in ((unseen, ended), (unseen, unseen)):  # when it began has been seen since, or never
        (found,) = since(replace(after, processes=(second,)), replace(before, processes=(first,)), "").processes
        assert found.hits == {KEY: 0}
    found = since(replace(after, processes=(unseen, new)), replace(before, processes=(unseen,)), "").processes
    assert [each.hits for each in found] == [{KEY: 0}, {KEY: 4}]


def test_calls_that_were_learning_before_any_was_timed_are_of_their_own_interval():
    before = timing(count=0, sum_ns=0.0, buckets=(), learning=7, in_flight=0)
    after = timing(count=3, sum_ns=30.0, min_ns=9.0, max_ns=11.0, buckets=((8.0, 16.0, 3),), learning=9)
    (found,) = since(snapshot(functions=(after,)), snapshot(functions=(before,)), "").functions
    assert (found.count, found.learning, found.min_ns, found.max_ns) == (3, 2, 9.0, 11.0)
