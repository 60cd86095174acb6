"""Tables of locks and of where threads sleep, from what handlers have counted."""

import io

import pytest
from rich.console import Console

from anyprobe.data.aggregates.results import AggregationResult, CellValue
from anyprobe.data.findings.offcpu import ASLEEP, Cause, with_causes
from anyprobe.data.findings.waiting import ACQUIRED, BLOCKERS, HELD, HOLDERS, WAITED, WAITERS, LockKind, locks_of
from anyprobe.data.layouts.keys import Place
from anyprobe.probes.waiting.kernel_locks import place_kernel_locks
from anyprobe.probes.waiting.kernel_locks import told as told_of
from anyprobe.reports.plain import PlainConsole
from anyprobe.reports.waiting import CAUSES, print_locks, print_offcpu
from anyprobe.target.kernel.symbols import Symbols
from support.sample_snapshots import snapshot

HOT, HEAP, GATE = Place(0x1000, "shop:hot"), Place(0x2000, "0x2000"), Place(0x3000, "shop:gate")
BY = ("lock", "kind")
STACK = "libc.so.6:__lll_lock_wait+0x50 < libc.so.6:pthread_mutex_lock+0x112 < shop:sell+0x20 < shop:main+0x9"


def cell(*values):
    return CellValue(
        len(values), sum(values), min(values), max(values), None, tuple((each, each + 1, 1) for each in sorted(values))
    )


def locks(hot="shop:hot", stack=STACK, dropped=0):
    hot = Place(0x1000, hot)
    mutex, heap, gate = (hot, LockKind.MUTEX), (HEAP, LockKind.MUTEX), (GATE, LockKind.CONDITION)
    return (
        AggregationResult(ACQUIRED, "count", BY, {mutex: CellValue(10), heap: CellValue(4), gate: CellValue(2)}),
        AggregationResult(WAITED, "hist", BY, {mutex: cell(2000, 6000), gate: cell(50_000_000, 70_000_000)}),
        AggregationResult(HELD, "hist", BY, {mutex: cell(100, 200, 300), heap: cell(50)}, dropped=dropped),
        AggregationResult(HOLDERS, "sum", (*BY, "place"), {(*mutex, "shop:count+0x7"): CellValue(2, 8000)}),
        AggregationResult(WAITERS, "sum", (*BY, "stack"), {(*mutex, stack): CellValue(2, 8000)}),
        AggregationResult(
            BLOCKERS,
            "sum",
            (*BY, "stack"),
            {(*mutex, "libc.so.6:unlock < shop:refill+0x8 < shop:main+0x3"): CellValue(3, 6000)},
        ),
    )


def printed(draw, aggregations, width=160, plain=True, top=40):
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None)
    shown = snapshot(sites=(), refused=(), aggregations=tuple(aggregations))
    draw(shown, PlainConsole(stream, width) if plain else console, top)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_locks_that_were_waited_for_come_first_with_their_waiters_and_holders():
    lines = printed(print_locks, locks())
    assert "2 locks taken 14 times, 2 times after a wait, 8.00 µs of waiting" in lines[0]
    rows = [line.split() for line in lines if line.endswith((" mutex", " condition"))]
    assert [row[-2] for row in rows] == ["shop:hot", "0x2000", "shop:gate"]
    assert rows[0][:2] == ["8.00", "µs"]
    assert rows[1][:4] == ["-"] * 4
    assert "    100 %  2 waits  held when a wait began, taken at shop:count+0x7" in lines
    given_back = "    100 %  3 times  held while others waited, given back at shop:refill+0x8 < shop:main+0x3"
    assert given_back in lines
    assert "    100 %  2 waits  waited for at shop:sell+0x20 < shop:main+0x9" in lines


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("draw", [print_locks, print_offcpu])
def test_tables_are_the_same_with_and_without_colours(draw, width):
    both = [*locks(), *asleep()]
    assert printed(draw, both, width) == printed(draw, both, width, plain=False)


def test_rows_beyond_the_wanted_ones_are_counted():
    assert any("1 more lock" in line for line in printed(print_locks, locks(), top=1))


def test_what_found_no_room_is_said():
    assert any(
        "7 values of locks for which there was no room" in line for line in printed(print_locks, locks(dropped=7))
    )


def test_without_any_lock_there_is_one_line():
    lines = printed(print_locks, ())
    assert "0 locks taken 0 times" in lines[0]
    assert len([line for line in lines if line]) == 2


def test_no_name_of_a_program_reaches_the_terminal_raw():
    bad = "shop:\x1b[2J[bold]"
    lines = printed(print_locks, locks(hot=bad, stack=f"{bad} < {bad}"))
    assert not any("\x1b" in line for line in lines)
    assert any("\\x1b[2J[bold]" in line for line in lines)


def asleep():
    entries = {
        ("libc.so.6:poll", "libc.so.6:poll+0x18 < shop:serve+0x4"): cell(3_000_000, 5_000_000),
        ("libc.so.6:usleep", "libc.so.6:usleep+0x9 < shop:rest+0x4"): cell(1_000_000),
        ("libc.so.6:unheard_of", "libc.so.6:unheard_of+0x9"): cell(2000),
    }
    counted = AggregationResult(ASLEEP, "quantize", ("function", "stack"), entries)
    return [with_causes(counted, {"libc.so.6:poll": Cause.POLL, "libc.so.6:usleep": Cause.TIMER})]


def test_sleep_is_told_by_cause_and_by_stack():
    lines = printed(print_offcpu, asleep())
    assert "9.00 ms off processors in 3 places" in lines[0]
    causes = [line.rpartition("  ")[2] for line in lines if line.endswith(("descriptors", "pass", "number"))]
    assert causes == ["any of several descriptors", "a time to pass", "a system call by its number"]
    assert " 8.00 ms  2 waits  libc.so.6:poll+0x18 < shop:serve+0x4" in lines


def test_documents_have_locks_and_stacks_and_other_aggregations_by_name():
    other = AggregationResult("other", "count", (), {(): CellValue(3)})
    document = snapshot(aggregations=(*locks(), *asleep(), other)).as_json()
    assert list(document["aggregations"]) == ["other"]
    hot, *_ = (each for each in document["locks"] if each["symbol"] == "shop:hot")
    assert (hot["acquisitions"], hot["contended"], hot["wait_ns"], hot["max_wait_ns"]) == (10, 2, 8000, 6000)
    assert (hot["holds"], hot["hold_ns"], hot["holders"][0]["waited_ns"]) == (3, 600, 8000)
    assert [each["cause"] for each in document["stacks"]] == ["poll", "timer", "call"]
    heap, *_ = (each for each in document["locks"] if each["address"] == 0x2000)
    assert heap["symbol"] is None
    assert heap["max_wait_ns"] is None


def test_what_has_no_causes_yet_stays_an_aggregation():
    counted = AggregationResult(ASLEEP, "quantize", ("function", "stack"), {("libc.so.6:poll", "a < b"): cell(1)})
    assert list(snapshot(aggregations=(counted,)).as_json()["aggregations"]) == [ASLEEP]


def test_locks_of_several_processes_are_added_up():
    (first, *_), (second, *_) = (
        locks_of(locks()),
        locks_of(tuple(one.merged(other) for one, other in zip(locks(), locks(), strict=True))),
    )
    assert (second.acquisitions, second.wait_ns) == (2 * first.acquisitions, 2 * first.wait_ns)


def test_all_causes_have_words():
    assert set(Cause) == set(CAUSES)


def test_locks_of_the_kernel_are_not_known_to_have_been_taken():
    """Of variables by name, and of waiters without the functions by which all wait."""
    lock, kind = 0xFFFFFFFF82003000, int(LockKind.RWSEM)
    stack = "rwsem_down_write_slowpath+0x4ff < down_write+0x5a < ext4_buffered_write_iter+0x31 < vfs_write+0x2"
    found = [
        AggregationResult(WAITED, "hist", BY, {(lock, kind): cell(2000, 6000)}),
        AggregationResult(WAITERS, "sum", (*BY, "stack"), {(lock, kind, stack): CellValue(2, 8000)}),
    ]
    symbols = Symbols(
        b"ffffffff81000000 T _text\nffffffff82000000 D init_task\nffffffff82003000 d gate\nffffffff83000000 B _end\n"
    )
    told = [told_of(each, symbols) for each in found]
    (known,) = locks_of(told)
    assert (known.name, known.acquisitions, known.waiters[0].stack[0]) == (
        "gate",
        None,
        "ext4_buffered_write_iter+0x31",
    )
    lines = printed(print_locks, told)
    assert "1 lock waited for 2 times, 8.00 µs of waiting" in lines[0]
    assert [line.split()[-5:] for line in lines if line.endswith("rwsem")] == [["µs", "2", "-", "gate", "rwsem"]]
    assert known.as_json()["acquisitions"] is None
    empty = [AggregationResult(WAITED, "hist", BY, {}), AggregationResult(WAITERS, "sum", (*BY, "stack"), {})]
    assert "0 locks waited for 0 times" in printed(print_locks, empty)[0]


def test_no_wait_is_seen_to_begin_before_its_end_would_be_seen():
    placed = []

    class Kernel:
        def entry(self, spec):
            placed.append(spec)
            return lambda handler: handler

    place_kernel_locks(Kernel())
    assert placed == ["tracepoint:lock:contention_end", "tracepoint:lock:contention_begin"]
