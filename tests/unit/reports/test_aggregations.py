import io

from rich.console import Console

from anyprobe.data.results import AggregationResult, CellValue
from anyprobe.reports.aggregations import print_aggregations
from anyprobe.reports.histogram import BAR_PARTS
from sample_snapshots import snapshot, timing


def shown(*results, top=0):
    stream = io.StringIO()
    print_aggregations(
        snapshot(aggregations=results, refused=()), Console(file=stream, width=100, color_system=None), top
    )
    return stream.getvalue()


def test_what_a_script_only_counts_or_times_is_shown():
    stream = io.StringIO()
    of = snapshot(functions=(timing("free"),), refused=())
    print_aggregations(of, Console(file=stream, width=100, color_system=None))
    text = stream.getvalue()
    assert "12,345" in next(line for line in text.splitlines() if " malloc " in line)
    assert "free (libc.so.6)" in text
    counted = shown(AggregationResult("c", "count", ("k",), {(1,): CellValue(3)}))
    assert "malloc" not in counted


def test_numbers_are_a_table_with_the_largest_last():
    entries = {(7, "a"): CellValue(3, 30), (8, "b"): CellValue(1, 2500), (9, "c"): CellValue(2, 9)}
    text = shown(AggregationResult("bytes", "sum", ("tid", "name"), entries, dropped=4))
    lines = text.splitlines()
    head = next(index for index, line in enumerate(lines) if "tid" in line)
    assert lines[head - 1].startswith("bytes (sum)")
    assert [line.split() for line in lines[head + 1 : head + 4]] == [
        ["9", "c", "9"],
        ["7", "a", "30"],
        ["8", "b", "2,500"],
    ]
    assert "4 values found no room for their key" in text


def test_only_the_largest_are_shown_on_demand():
    entries = {(number,): CellValue(number) for number in range(1, 6)}
    text = shown(AggregationResult("c", "count", ("k",), entries), top=2)
    assert "… and 3 smaller ones" in text
    assert len([line for line in text.splitlines() if line.strip() in {"4      4", "5      5"}]) == 2


def test_distributions_have_bars_by_key():
    buckets = ((-(2.0**63), 0.0, 1), (0.0, 1.0, 2), (70.0, 71.0, 30), (100.0, 101.0, 30))
    cell = CellValue(63, 5000, -5, 100, None, buckets)
    text = shown(AggregationResult("ns", "hist", ("tid",), {(7,): cell}))
    assert "tid=7" in text
    assert "63 values, mean 79.4, min -5, max 100" in text
    rows = [line for line in text.splitlines() if set(line) & set(BAR_PARTS[1:])]
    assert rows[0].split()[:3] == ["below", "0", "1"]
    assert rows[-1].split()[:4] == ["64", "…", "127", "60"]


def test_linear_buckets_are_shown_as_they_are_and_normalized():
    cell = CellValue(30, 100, 1, 30, None, ((10.0, 20.0, 20), (20.0, 2.0**64, 10)))
    text = shown(AggregationResult("l", "lquantize", (), {(): cell}, factor=10))
    assert "l (lquantize, divided by 10)" in text
    rows = [line.split() for line in text.splitlines() if "█" in line]
    assert [row[:-1] for row in rows] == [["10", "…", "19", "2"], ["from", "20", "1"]]


def test_nothing_is_said_to_be_nothing():
    assert "nothing was counted" in shown(AggregationResult("h", "hist"))


def test_the_open_end_of_a_histogram_is_no_power_of_two():
    cell = CellValue(3, 1 << 51, 5, 1 << 50, buckets=((5.0, 6.0, 1), (2.0**44, 2.0**64, 2)))
    lines = shown(AggregationResult("h", "hist", entries={(): cell})).splitlines()
    assert lines[-1].split()[:3] == ["from", "17,592,186,044,416", "2"]
    assert lines[-2].split()[:4] == ["4", "…", "7", "1"]


def test_what_was_lost_is_said():
    taken = snapshot(dropped={"reads": {"ring full": 7}}, missing={"fault": 3, "abandoned": 0})
    console = Console(file=io.StringIO(), width=200)
    print_aggregations(taken, console)
    text = console.file.getvalue()
    assert "reads: 7 losses (ring full)" in text
    assert "reads of bad addresses: 3" in text
    assert "abandoned" not in text
