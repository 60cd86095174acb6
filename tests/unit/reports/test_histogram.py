import io
from dataclasses import replace

import pytest
from rich.console import Console

from anyprobe.reports import histogram
from anyprobe.reports.distribution import bar
from anyprobe.reports.quantities import counted, duration, mean, percent, rate
from support.sample_snapshots import snapshot, timing


def shown(*functions, top=40):
    stream = io.StringIO()
    histogram.print_timings(snapshot(functions=functions, refused=()), Console(file=stream, width=120), top)
    return stream.getvalue()


BUSY = timing(
    "work",
    count=100_000,
    tail_exits=87_300,
    sum_ns=7.85e6,
    min_ns=10.0,
    max_ns=1_040_000.0,
    buckets=(
        (0.0, 0.5, 100),
        (10.0, 10.5, 29_900),
        (20.0, 20.5, 20_000),
        (30.0, 30.5, 10_000),
        (100.0, 102.0, 39_000),
        (1000.0, 1016.0, 999),
        (1_032_000.0, 1_048_000.0, 1),
    ),
)


def lines(*functions, width=80, top=40, **changes):
    stream = io.StringIO()
    of = snapshot(functions=functions, refused=(), clock_step_ns=10.02, **changes)
    histogram.print_timings(of, Console(file=stream, width=width, color_system=None), top)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_the_whole_report_on_a_terminal_of_80_columns():
    first, *others = lines(BUSY)
    assert first.startswith("redis-server (pid 4194305): 100,000 calls of 1 function timed in 5.00 s; ")
    assert first.endswith("; 87,300 calls left by a tail jump and were not timed")
    assert others == [
        "paused: 0.31 ms arm · 0.12 ms disarm; set up in 372 ms",
        "",
        "   calls    total     mean    p50     p90     p99      max  function  module",
        "100,000*  7.85 ms  78.5 ns  20 ns  100 ns  100 ns  1.04 ms  work      libc.so.6",
        "* not all calls of the function were timed: times and numbers of calls are of those that were",
        "",
        "work (libc.so.6)",
        "  100,000 calls, sum 7.85 ms, p50 20 ns, p90 100 ns, p99 100 ns, max 1.04 ms",
        "                    calls    % cum %",
        "           ≤ 10 ns 30,000 30.0  30.0 ████████████████████████▋",
        "     16 ns … 32 ns 30,000 30.0  60.0 ████████████████████████▋ p50",
        "                 ⋮",
        "    64 ns … 128 ns 39,000 39.0  99.0 ████████████████████████████████ p90 p99",
        "                 ⋮",
        "  512 ns … 1.02 µs    999  1.0 >99.9 ▉",
        "                 ⋮",
        "  524 µs … 1.05 ms      1 <0.1   100 ▏",
        "work: 87,300 calls left by a tail jump and not timed",
        "the clock steps by 10 ns: shorter times cannot be told apart",
    ]


def test_calls_of_callers_not_known_yet_are_told_at_the_top_and_at_the_end():
    first, *others = lines(replace(BUSY, tail_exits=0, learning=1), width=120)
    assert first.endswith("; 1 call from callers not known yet was not timed")
    assert "work: 1 call not timed, from callers not known yet (learning)" in others


def test_why_callers_are_refused_is_told_where_calls_come_from_there():
    refused = (("not-code", 1), ("return-point-joined", 2))
    told = "work: 87,300 calls left by a tail jump and not timed, callers refused: 1 not-code, 2 return-point-joined"
    assert told in lines(replace(BUSY, callers_refused=refused), width=120)
    assert not any("refused" in line for line in lines(replace(BUSY, tail_exits=0, callers_refused=refused)))


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40, 32])
def test_no_row_is_wider_than_the_terminal(width):
    huge = timing(count=10**15, buckets=((10.0, 20.0, 10**15 - 1), (2.0**40, 2.0**40 + 1, 1)), max_ns=2.0**40)
    for function in (BUSY, timing(), huge):
        text = lines(function, width=width)
        rows = text[next(at for at, line in enumerate(text) if "cum %" in line or line.lstrip() == "calls") :]
        rows = [row for row in rows if row.startswith("  ")]
        assert len(rows) >= 4
        assert max(map(len, rows)) <= width


def test_the_name_of_a_function_is_shown_however_narrow_the_terminal_is():
    for width in (120, 80, 72, 60):
        head, row = lines(timing("a_function_of_some_length", count=1_234_567, sum_ns=1e9), width=width)[3:5]
        assert "a_function_of" in row
        assert len(head) <= width


def test_the_top_of_a_distribution_keeps_its_own_rows():
    tail = tuple((float(1 << power), float(1 << power) + 1, 1) for power in range(12, 30))
    text = lines(timing(count=1_000_018, buckets=((10.0, 20.0, 1_000_000), *tail), max_ns=2.0**29))
    assert sum(line.endswith(" 1  <0.1 >99.9 ▏") for line in text) == 17
    assert text[-3] == "    537 ms … 1.07 s         1  <0.1   100 ▏"


def test_nothing_is_said_of_the_clock_where_all_is_longer_than_its_step():
    slow = timing(min_ns=1000.0, buckets=((1000.0, 1010.0, 100),))
    assert not any("the clock steps" in line or "≤" in line for line in lines(slow))
    text = shown(timing(min_ns=0.39))
    assert "0.39 ns" in text  # nothing is known of the clock


def test_of_which_functions_most_calls_have_no_time_is_told_at_once():
    mostly = timing("mostly", count=1, tail_exits=9)
    assert lines(timing(tail_exits=0))[0].endswith("100 calls of 1 function timed in 5.00 s")
    assert lines(timing(tail_exits=1))[0].endswith("; 1 call left by a tail jump and was not timed")
    assert lines(timing(), mostly)[0].endswith("; 12 calls left by a tail jump and were not timed: most of mostly")


def test_a_function_of_which_all_calls_left_by_a_jump_has_a_row_without_durations():
    text = lines(timing("gone", count=0, buckets=(), sum_ns=0.0, tail_exits=5))
    assert text[4].split() == ["0*", *["-"] * 7, "gone", "libc.so.6"]
    assert text[-1] == "gone: 5 calls left by a tail jump and not timed"


def test_returns_of_calls_that_came_in_elsewhere_are_explained():
    """As those of ``mempcpy`` in ``memcpy``: they are no calls of it, and nothing is wrong with its own."""
    text = lines(timing("memcpy", tail_exits=0, unmatched=7))
    assert text[0].endswith("100 calls of 1 function timed in 5.00 s")
    line = "memcpy: 7 returns of calls that came in elsewhere than at the entry, or earlier"
    assert line in text


def test_the_longest_in_all_comes_first():
    text = shown(timing("quick", sum_ns=10.0), timing("slow", sum_ns=1e9))
    assert text.index("slow") < text.index("quick")


def test_a_function_without_calls_has_no_bars():
    text = shown(timing(count=0, buckets=(), sum_ns=0.0, tail_exits=0))
    assert "%" not in text
    assert "… and 1 function without a call (malloc)" in text
    assert " - " in shown(timing(count=0, buckets=(), sum_ns=0.0, tail_exits=0), top=0)


def test_many_uncalled_functions_are_summed_up():
    idle = [timing(f"idle{number}", count=0, tail_exits=0, buckets=(), sum_ns=0.0) for number in range(9)]
    assert "… and 9 functions without a call" in shown(timing(), *idle, top=3)


@pytest.mark.parametrize(("share", "drawn"), [(0, ""), (1, "████"), (0.5, "██"), (0.0001, "▏"), (0.28, "█▏")])
def test_bars_have_eighths(share, drawn):
    assert bar(share, 4) == drawn


@pytest.mark.parametrize(
    ("ns", "text"),
    [(None, "-"), (0.3, "0.30 ns"), (12.34, "12.3 ns"), (999.6, "1.00 µs"), (1.5e6, "1.50 ms"), (2e9, "2.00 s")],
)
def test_durations_have_three_digits(ns, text):
    assert duration(ns) == text


@pytest.mark.parametrize(
    ("ns", "step", "text"),
    [
        (0.0, 10.02, "≤ 10 ns"),
        (10.52, 10.02, "≤ 10 ns"),
        (20.4, 10.02, "20 ns"),
        (761.3, 10.02, "762 ns"),
        (1354.0, 10.02, "1.35 µs"),
        (2e9, 10.02, "2.00 s"),
        (0.39, 0.385, "≤ 0.39 ns"),
        (12.34, 0.5, "12.5 ns"),
        (1.2e6, 279.4, "1.20 ms"),
        (1500.0, 279.4, "1.4 µs"),
        (None, 10.0, "-"),
    ],
)
def test_durations_are_no_more_precise_than_the_clock(ns, step, text):
    assert duration(ns, step) == text


@pytest.mark.parametrize(
    ("total", "count", "step", "text"),
    [
        (345.0, 1, 10.02, "341 ns"),
        (9.0, 1, 10.02, "≤ 10 ns"),
        (100.0, 3, 10.02, "33 ns"),
        (345.27e4, 10_000, 10.02, "345 ns"),
        (12.34e4, 10_000, 10.02, "12.3 ns"),
        (12.34, 1, 0.0, "12.3 ns"),
        (0.0, 0, 10.02, "-"),
    ],
)
def test_the_mean_of_many_calls_is_more_precise_than_that_of_one(total, count, step, text):
    assert mean(total, count, step) == text


def test_the_sum_and_the_mean_of_one_call_have_no_digits_below_the_step():
    once = timing(count=1, tail_exits=0, sum_ns=345.27, min_ns=345.27, max_ns=345.27, buckets=((344.0, 348.0, 1),))
    row = next(line.split() for line in lines(once) if line.split()[:1] == ["1"])
    assert row[:5] == ["1", "341", "ns", "341", "ns"]


@pytest.mark.parametrize(
    ("count", "total", "text"),
    [(0, 10, "0.0"), (1, 10_000, "<0.1"), (9_999, 10_000, ">99.9"), (10, 10, "100"), (1, 3, "33.3")],
)
def test_shares_are_none_or_all_only_where_they_are(count, total, text):
    assert percent(count, total) == text


def test_rates_and_counts():
    assert rate(12345, 5.0) == "2,469"
    assert rate(7, 5.0) == "1.4"
    assert rate(1, 0) == "-"
    assert counted(1, "hit") == "1 hit"
    assert counted(2000, "process", "processes") == "2,000 processes"


def test_ends_seen_at_replaced_return_addresses_are_said_to_be():
    assert "ends seen at replaced return addresses" in shown(timing(exit_kind="trampoline"))
    assert "replaced" not in shown(timing())
