import io

from rich.console import Console

from anyprobe.data.aggregates.results import AggregationResult, CellValue
from anyprobe.reports.aggregations import print_aggregations
from support.sample_snapshots import site, snapshot, timing


def shown(*results, top=0, width=100, **changes):
    stream = io.StringIO()
    print_aggregations(
        snapshot(aggregations=results, refused=(), **changes),
        Console(file=stream, width=width, color_system=None),
        top,
    )
    return stream.getvalue()


def block(*results, **settings):
    """Return what is shown below the heading, without blanks at the ends."""
    return [line.rstrip() for line in shown(*results, **settings).splitlines()[3:]]


def test_what_a_script_only_counts_or_times_is_shown():
    stream = io.StringIO()
    of = snapshot(functions=(timing("free"),), refused=())
    print_aggregations(of, Console(file=stream, width=100, color_system=None))
    text = stream.getvalue()
    assert "12,345" in next(line for line in text.splitlines() if " malloc " in line)
    assert "free (libc.so.6)" in text
    counted = shown(AggregationResult("c", "count", ("k",), {(1,): CellValue(3)}))
    assert "malloc" not in counted


def test_numbers_are_a_table_with_the_largest_first():
    entries = {(7, "a"): CellValue(3, 30), (8, "b"): CellValue(1, 2500), (9, "c"): CellValue(2, 9)}
    text = shown(AggregationResult("bytes", "sum", ("tid", "name"), entries, dropped=4))
    lines = text.splitlines()
    head = next(index for index, line in enumerate(lines) if "tid" in line)
    assert lines[head - 1].startswith("bytes (sum)")
    assert [line.split() for line in lines[head + 1 : head + 4]] == [
        ["8", "b", "2,500"],
        ["7", "a", "30"],
        ["9", "c", "9"],
    ]
    assert "4 values found no room for their key" in text


def test_only_the_largest_are_shown_on_demand():
    entries = {(number,): CellValue(number) for number in range(1, 6)}
    text = shown(AggregationResult("c", "count", ("k",), entries), top=2)
    assert "… and 3 smaller ones" in text
    assert len([line for line in text.splitlines() if line.strip() in {"4      4", "5      5"}]) == 2


LOG_LINEAR = ((-(2.0**63), 0.0, 1), (0.0, 1.0, 2), (70.0, 71.0, 30), (100.0, 102.0, 29), (1e6, 1e6 + 16384, 1))


def test_a_distribution_has_facts_shares_and_marks():
    cell = CellValue(63, 5000, -5, 1_000_100, None, LOG_LINEAR)
    assert block(AggregationResult("bytes", "hist", (), {(): cell}), width=80) == [
        "bytes (hist)",
        "  63 values, sum 5,000, mean 79.4, min -5, p50 70, p90 101, p99 1,000,000,",
        "    max 1,000,100",
        "                      values    % cum %",
        "              below 0      1  1.6   1.6 ▌",
        "                    0      2  3.2   4.8 █▏",
        "                    ⋮",
        "             64 … 127     59 93.7  98.4 ████████████████████████████████ p50 p90",
        "                    ⋮",
        "  524,288 … 1,048,575      1  1.6   100 ▌ p99",
    ]


def test_durations_are_shown_as_such_and_no_finer_than_the_clock():
    cell = CellValue(10, 12_000, 0, 9_000, None, ((0.0, 1.0, 2), (10.0, 11.0, 4), (20.0, 21.0, 3), (9e3, 9.1e3, 1)))
    result = AggregationResult("latency_ns", "hist", (), {(): cell})
    pair = (site("f", 12), site("f", 9, kind="return", exit_kind="ret"), site("f", 3, kind="return", exit_kind="tail"))
    text = shown(result, width=80, clock_step_ns=10.02, sites=pair, tail_exits=2).splitlines()
    assert text[0] == ("redis-server (pid 4194305): 12 calls in 5.00 s; 2 calls left by a tail jump and were not timed")
    assert text[3:] == [
        "latency_ns (hist)",
        "  10 calls, sum 12.0 µs, mean 1.20 µs, min ≤ 10 ns, p50 ≤ 10 ns, p90 20 ns,",
        "    p99 9.00 µs, max 9.00 µs",
        "                    calls    % cum %",
        "            ≤ 10 ns     6 60.0  60.0 ████████████████████████████████ p50",
        "      16 ns … 32 ns     3 30.0  90.0 ████████████████ p90",
        "                  ⋮",
        "  8.19 µs … 16.4 µs     1 10.0   100 █████▍ p99",
        "the clock steps by 10 ns: shorter times cannot be told apart",
    ]


def test_rows_in_steps_are_within_the_clocks_step_only_if_all_of_them_is():
    def rows(step, buckets):
        cell = CellValue(30, 300, 0, 30, None, buckets)
        text = block(AggregationResult("x_ns", "lquantize", (), {(): cell}), clock_step_ns=step)
        return [line.split("█")[0].split()[:-2] for line in text if "█" in line]

    assert rows(10.02, ((0.0, 5.0, 10), (10.0, 15.0, 10), (15.0, 20.0, 10))) == [
        ["≤", "10", "ns", "20"],
        ["15", "ns", "…", "20", "ns", "10"],
    ]
    assert rows(10.02, ((0.0, 1000.0, 20), (1000.0, 2000.0, 10)))[0][:2] == ["0", "ns"]


def test_what_is_within_the_clocks_step_is_one_column_for_all_keys():
    cells = {
        (key,): CellValue(20, 90, 0, 21, None, tuple(sorted(((low, low + 1.0, 10), (20.0, 21.0, 10)))))
        for key, low in enumerate((0.0, 3.0, 10.0))
    }
    text = block(AggregationResult("x_ns", "hist", ("tid",), cells), width=80, clock_step_ns=10.02)
    assert text[1].split() == ["values", "p50", "max", "≤10", "16"]
    assert len([line for line in text if line.endswith(("▓" * 12, "█" * 12))]) == 3


def test_sums_of_durations_are_durations_too():
    def row(kind, cell, **changes):
        return block(AggregationResult("x_ns", kind, ("tid",), {(7,): cell}, **changes), clock_step_ns=10.02)[2].split()

    assert row("sum", CellValue(3, 2_500_000)) == ["7", "2.50", "ms"]
    assert row("avg", CellValue(3, 100)) == ["7", "33", "ns", "3"]
    assert row("min", CellValue(3, None, 10)) == ["7", "≤", "10", "ns", "3"]
    assert row("count", CellValue(3)) == ["7", "3"]
    assert row("sum", CellValue(3, 2_500_000), factor=1000) == ["7", "2,500"]


def test_calls_are_counted_as_calls_and_hits_as_hits():
    pair = (site("f", 12), site("f", 12, kind="return", exit_kind="ret"))
    one = AggregationResult("c", "count", (), {(): CellValue(3)})
    assert ": 12 calls in " in shown(one, sites=pair)
    assert ": 12 calls, 5 hits in " in shown(one, sites=(*pair, site("g", 5)))
    assert ": 5 hits in " in shown(one, sites=(site("g", 5),))
    assert ": 12 hits in " in shown(one, sites=pair[1:])
    assert "began" not in shown(one, sites=pair)
    under_way = shown(one, sites=(site("f", 13), *pair[1:]))
    assert "1 more call began than ended: what is under way has no result and no time" in under_way
    assert ": 0 hits in " in shown(one, sites=())


def test_whole_numbers_of_any_size_are_exact():
    top = (1 << 63) - 1
    buckets = ((2.0**44, 2.0**64, 5),)
    text = shown(
        AggregationResult("r", "hist", (), {(): CellValue(5, 5 * top, top - 5, top, None, buckets)}), width=300
    )
    assert f"5 values, sum {5 * top:,}, mean {top:,}, min {top - 5:,}" in text
    assert f"max {top:,}" in text
    for kind, value in (("sum", 5 * top), ("avg", top), ("max", top), ("min", top - 5)):
        assert f"{value:,}" in shown(AggregationResult("r", kind, (), {(): CellValue(5, 5 * top, top - 5, top)}))
    assert CellValue(2, 2 * top + 1, kind="avg").value == top + 1  # to the nearest whole number
    assert CellValue(2, 3, kind="avg").value == 1.5


KEYED = {
    (3, "reader"): CellValue(
        100, 900, 0, 70, None, ((0.0, 1.0, 1), (1.0, 2.0, 4), (8.0, 9.0, 60), (16.0, 17.0, 30), (64.0, 65.0, 5))
    ),
    (4, "writer"): CellValue(1_000, 9_000, 2, 4100, None, ((8.0, 9.0, 999), (4096.0, 4160.0, 1))),
}


def test_distributions_of_keys_are_one_grid():
    assert block(AggregationResult("size", "hist", ("fd", "comm"), KEYED), width=80) == [
        "size (hist)",
        "                  values  p50    max  0     1     ⋮8     16    ⋮64    ⋮4K",
        "fd=4 comm=writer   1,000    8  4,100              ⋮██████      ⋮      ⋮······",
        "fd=3 comm=reader     100    8     70  ░░░░░░░░░░░░⋮██████▓▓▓▓▓▓⋮░░░░░░⋮",
        "  of a row's values: █ ≥ 50 %, ▓ ≥ 25 %, ▒ ≥ 10 %, ░ ≥ 1 %, · fewer",
        "  columns by their lower ends (K: 1,024)",
    ]


def test_a_grid_is_no_wider_than_the_terminal():
    wide = {
        (f"a rather long key of the name {number} that goes on and on",): CellValue(
            64, 1, 0, 1, None, tuple((float(1 << power), float(1 << power) + 1, 1) for power in range(44))
        )
        for number in range(3)
    }
    for width in (200, 80, 100):
        text = block(AggregationResult("size", "hist", ("key",), wide), width=width)
        assert max(map(len, text)) <= width
        assert any("░░░░" in line for line in text)
        assert not any("█▏" in line for line in text)


def test_keys_have_bars_each_where_a_grid_has_no_room():
    text = block(AggregationResult("size", "hist", ("fd", "comm"), KEYED), width=20)
    assert text[1] == "  fd=4 comm=writer"
    assert "  fd=3 comm=reader" in text


def test_a_grid_of_durations_has_units():
    cells = {(1,): CellValue(10, 9, 0, 9_000, None, ((0.0, 1.0, 2), (10.0, 11.0, 4), (20.0, 21.0, 3), (9e3, 9.1e3, 1)))}
    text = block(AggregationResult("x_ns", "hist", ("tid",), cells), width=80, clock_step_ns=10.02)
    assert text[1:3] == [
        "       values      p50      max  ≤10   16    ⋮8µ",
        "tid=1      10  ≤ 10 ns  9.00 µs  ██████▓▓▓▓▓▓⋮▒▒▒▒▒▒",
    ]
    assert text[4:] == [
        "  columns by their lower ends (ns; µ: µs, m: ms)",
        "the clock steps by 10 ns: shorter times cannot be told apart",
    ]


def test_linear_buckets_are_shown_as_they_are_and_normalized():
    cell = CellValue(30, 100, 1, 30, None, ((10.0, 20.0, 20), (20.0, 2.0**64, 10)))
    text = shown(AggregationResult("l", "lquantize", (), {(): cell}, factor=10))
    assert "l (lquantize, divided by 10)" in text
    rows = [line.split() for line in text.splitlines() if "█" in line]
    assert rows[0][:-2] == ["10", "…", "19", "2", "66.7", "66.7"]
    assert rows[1][:5] == ["≥", "20", "1", "33.3", "100"]


def test_nothing_is_said_to_be_nothing():
    assert "nothing was counted" in shown(AggregationResult("h", "hist"))


def test_the_open_end_of_a_histogram_is_no_power_of_two():
    cell = CellValue(3, 1 << 51, 5, 1 << 50, buckets=((5.0, 6.0, 1), (2.0**44, 2.0**64, 2)))
    lines = shown(AggregationResult("h", "hist", entries={(): cell})).splitlines()
    assert lines[-1].split()[:3] == ["≥", "17,592,186,044,416", "2"]
    assert lines[-2].split() == ["⋮"]
    assert lines[-3].split()[:4] == ["4", "…", "7", "1"]


def test_what_was_lost_is_said():
    taken = snapshot(dropped={"reads": {"ring full": 7}}, missing={"fault": 3, "abandoned": 0})
    console = Console(file=io.StringIO(), width=200)
    print_aggregations(taken, console)
    text = console.file.getvalue()
    assert "reads: 7 losses (ring full)" in text
    assert "reads of bad addresses: 3" in text
    assert "abandoned" not in text
