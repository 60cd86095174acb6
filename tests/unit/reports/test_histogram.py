import io

import pytest
from rich.console import Console

from anyprobe.reports import histogram
from anyprobe.reports.quantities import counted, duration, rate
from sample_snapshots import snapshot, timing


def shown(*functions, top=40):
    stream = io.StringIO()
    histogram.print_timings(snapshot(functions=functions, refused=()), Console(file=stream, width=120), top)
    return stream.getvalue()


def test_a_function_has_its_percentiles_and_its_bars():
    text = shown(timing())
    assert "100 calls of 1 function timed" in text
    assert "15.0 µs" in text
    rows = [line for line in text.splitlines() if "…" in line]
    assert len(rows) == 7
    assert rows[0].count("█") == histogram.BAR_WIDTH
    assert "3 calls left by a tail jump" in text


def test_the_longest_in_all_comes_first():
    text = shown(timing("quick", sum_ns=10.0), timing("slow", sum_ns=1e9))
    assert text.index("slow") < text.index("quick")


def test_a_function_without_calls_has_no_bars():
    text = shown(timing(count=0, buckets=(), sum_ns=0.0, tail_exits=0))
    assert "…" not in text
    assert "malloc" in text


def test_many_uncalled_functions_are_summed_up():
    idle = [timing(f"idle{number}", count=0, buckets=(), sum_ns=0.0) for number in range(9)]
    assert "… and 9 functions without a call" in shown(timing(), *idle, top=3)


@pytest.mark.parametrize(("share", "drawn"), [(0, ""), (1, "████"), (0.5, "██"), (0.0001, "▏"), (0.28, "█▏")])
def test_bars_have_eighths(share, drawn):
    assert histogram.bar(share, 4) == drawn


@pytest.mark.parametrize(
    ("ns", "text"),
    [(None, "-"), (0.3, "0.30 ns"), (12.34, "12.3 ns"), (999.6, "1.00 µs"), (1.5e6, "1.50 ms"), (2e9, "2.00 s")],
)
def test_durations_have_three_digits(ns, text):
    assert duration(ns) == text


def test_rates_and_counts():
    assert rate(12345, 5.0) == "2,469"
    assert rate(7, 5.0) == "1.4"
    assert rate(1, 0) == "-"
    assert counted(1, "hit") == "1 hit"
    assert counted(2000, "process", "processes") == "2,000 processes"


def test_the_thin_end_is_one_row_and_keeps_its_count():
    rows = [(1.0, 2.0, 5000), (2.0, 4.0, 5000), (4.0, 8.0, 3), (8.0, 16.0, 0), (16.0, 32.0, 2)]
    assert histogram.with_tail_folded(rows) == [*rows[:2], (4.0, 32.0, 5)]
    assert histogram.with_tail_folded(rows[:3]) == rows[:3]
    assert histogram.with_tail_folded([(1.0, 2.0, 1)]) == [(1.0, 2.0, 1)]


def test_ends_seen_at_replaced_return_addresses_are_said_to_be():
    assert "ends seen at replaced return addresses" in shown(timing(exit_kind="trampoline"))
    assert "replaced" not in shown(timing())
