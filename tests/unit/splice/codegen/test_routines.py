"""The generated routines: what they say in assembly is what they are, and what they do is what the reader expects."""

import platform
import re

import pytest

from anyprobe.data.layouts.histogram import BUCKETS, clamped_index
from anyprobe.data.layouts.layout import (
    ANY_THREAD,
    BLOCK_OWNER,
    BLOCK_PURGING,
    BLOCK_TID,
    BLOCK_TOP,
    BLOCK_UNWOUND,
    CALLER_NEW,
    CALLER_REFUSED,
    CALLER_WATCHED,
    CERTAIN,
    CHILD_BIT,
    INSTANCE_BYTES,
    INSTANCE_LATER,
    INSTANCE_RECORD,
    INSTANCE_SP,
    INSTANCE_T0,
    JUMPED,
    NEAR_BUCKETS,
    NEXT_BLOCK,
    RECORD_BUCKETS,
    RECORD_COUNT,
    RECORD_JUMPED,
    RECORD_LEARNING,
    RECORD_LEFT,
    RECORD_MAX,
    RECORD_MISSED,
    RECORD_NOT_MIN,
    RECORD_REPLACED,
    RECORD_SUM,
    RECORD_TAIL,
    RECORD_UNMATCHED,
    UNSEEN,
    BankLayout,
)
from anyprobe.isa import disassemble
from anyprobe.isa.decode import Flow, decode_range
from anyprobe.splice.codegen.routines import RoutineFacts, assemble_routines
from anyprobe.splice.translate.routines import routine_positions
from support.routine_runs import run_routines

MAXACTIVE, BLOCKS = 4, 2
LAYOUT = BankLayout(counters=4, records=2, maxactive=MAXACTIVE)
NOTED = 4
COUNTER, RECORD, OTHER = LAYOUT.counters_offset + 8, LAYOUT.new_record(), LAYOUT.new_record()
SHARED, FIRST = LAYOUT.shared_offset, LAYOUT.blocks_offset
ADDRESS = 0x7000_0000
TOMBSTONE = 1
POINT, SECOND = 0x5555_5555_1234, 0x5555_5555_5678
"""Where callers go on."""

native = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86-64 instructions")


# -- the code


FORMS = {
    "tsc": (0, 0, 0, False, 0),
    "vdso-and-callers": (0x7FFF_1234_5670, 4096, 0, False, 0),
    "children": (0, 4096, 0x7100_0C00, False, 0),
    "threads": (0, 0, 0x7100_0C00, True, 0),
    "tree": (0, 4096, 0, False, 4096),
    "processors": (0, 4096, 0, False, 4096, True),
    "processors-of-children": (0, 4096, 0x7100_0C00, True, 0, True),
}


@pytest.fixture(scope="module", params=FORMS.values(), ids=FORMS.keys())
def assembled(request):
    clock, callers, adopted, by_thread, nodes, *on_processors = request.param
    layout = BankLayout(
        counters=4, records=2, maxactive=MAXACTIVE, callers=callers, adopting=adopted > 0, by_thread=by_thread,
        nested=nodes > 0, nodes=nodes, on_processors=bool(on_processors),
    )  # fmt: skip
    facts = RoutineFacts(
        layout, 0x4000_0000_0000, 0x7100_0000, 0x208, clock,
        mask=1 << 46, adopted=adopted, closed=0x4000_0000_0050, change=adopted and 0x7200_0038, rate=11 << 30,
    )  # fmt: skip
    return assemble_routines(facts, ADDRESS)


def test_a_thread_that_is_interrupted_while_it_adopts_can_go_back_to_its_call():
    """What a signal handler sees then is the program's own code, but while more is mapped than is to stay."""
    layout = BankLayout(counters=4, records=2, maxactive=MAXACTIVE, adopting=True)
    facts = RoutineFacts(
        layout, 0x4000_0000_0000, 0x7100_0000, 0x208, mask=1 << 46, adopted=0x7100_0C00, closed=0x4000_0000_0050
    )
    code, routines, _ = assemble_routines(facts, ADDRESS)
    found = routine_positions(code, ADDRESS, routines.stretches)
    shown = {}
    for each in (each for each in routines.stretches if each.name.startswith("adopt")):
        starts = [insn.address for insn in decode_range(code, ADDRESS) if each.start <= insn.address < each.end]
        assert len(starts) > 10
        shown[each.name] = {at - ADDRESS in found for at in starts}
    assert shown == {"adopt": {True}, "adopt_half": {False}, "adopt_whole": {True}}


def test_a_thread_that_is_interrupted_while_it_maps_its_page_goes_on_with_that():
    """So nothing stays mapped or open that is not known of; elsewhere it goes back to its call."""
    layout = BankLayout(counters=4, records=2, maxactive=MAXACTIVE, on_processors=True)
    facts = RoutineFacts(layout, 0x4000_0000_0000, 0x7100_0000, 0x208, mask=1 << 46, rate=11 << 30)
    code, routines, _ = assemble_routines(facts, ADDRESS)
    found = routine_positions(code, ADDRESS, routines.stretches)
    shown = {}
    for each in (each for each in routines.stretches if each.name.startswith("waited")):
        starts = [insn.address for insn in decode_range(code, ADDRESS) if each.start <= insn.address < each.end]
        shown[each.name] = {at - ADDRESS in found for at in starts}
    assert shown == {"waited": {True}, "waited_thread": {False}, "waited_mapped": {True}}


def lines_of(listing):
    """Return (offset, bytes, assembly) of the lines with code, and the names by offset."""
    lines, names, waiting = [], {}, []
    for line in listing.splitlines():
        label = re.fullmatch(r"(\w+):", line)
        if label:
            waiting.append(label[1])
            continue
        offset, content, text = re.fullmatch(r" *([0-9a-f]+)  ((?:[0-9a-f]{2} ?)+) +(.*)", line).groups()
        names.update(dict.fromkeys(waiting, int(offset, 16)))
        waiting = []
        lines.append((int(offset, 16), bytes.fromhex(content), text))
    return lines, names


@pytest.mark.parametrize("clock", [0, 0x7FFF_1234_5670])
def test_a_bank_without_timing_records_has_no_routines_of_timing(clock):
    timed, counting = (
        assemble_routines(RoutineFacts(layout, 0x4000_0000_0000, 0x7100_0000, 0x208, clock), ADDRESS)
        for layout in (LAYOUT, BankLayout(counters=4))
    )
    assert len(counting[0]) < len(timed[0]) / 4
    routines = counting[1]
    assert routines.count
    assert (routines.enter, routines.leave, routines.leave_tail, routines.finish) == (0, 0, 0, 0)
    assert {each.name.partition("_")[0] for each in routines.stretches} == {"acquire", "process", "count"}


def test_all_bytes_decode_to_what_the_listing_says(assembled):
    code, _, listing = assembled
    decoded = {address - ADDRESS: (raw, text) for address, raw, text in disassemble.format(code, ADDRESS)}
    assert not any("(bad)" in text for _, text in decoded.values())
    at = 0
    lines, _ = lines_of(listing())
    for offset, content, text in lines:
        assert offset == at
        for part in text.split("; "):
            raw, shown = decoded[at]
            assert shown.removeprefix("lock ").split()[0] == mnemonic(part), (text, shown)
            at += len(raw)
        assert at == offset + len(content), text
    assert at == len(code)


def mnemonic(part):
    said = part.removeprefix("lock ").split()[0]
    return {"jz": "je", "jnz": "jne", "cmovz": "cmove"}.get(said, said)


ENDS = ("leave", "leave_tail", "leave_caller", "leave_switch")
"""The last one only where calls are nested."""
OWNERS = (*ENDS, *(f"finish_{name}" for name in ENDS), "count")


def test_branches_go_to_the_labels_that_the_listing_names(assembled):
    code, _, listing = assembled
    insns = {insn.address - ADDRESS: insn for insn in decode_range(code, ADDRESS)}
    lines, names = lines_of(listing())
    branches = 0
    for offset, _, text in lines:
        insn = insns[offset]
        if insn.target is None:
            continue
        word = text.split()[-1]
        owner = [name for name, place in names.items() if place <= offset and name in OWNERS]
        wanted = {names.get(word), *(names.get(f"{prefix}_{word}") for prefix in (*owner, *ENDS))}
        assert insn.target - ADDRESS in wanted, text
        branches += 1
    assert branches == sum(insn.target is not None for insn in insns.values())
    assert branches > 30


def test_every_routine_begins_where_it_is_said_to(assembled):
    _, routines, listing = assembled
    _, names = lines_of(listing())
    assert bool(routines.leave_switch) == bool(routines.unwind) == ("leave_switch" in names)
    for name in ("count", "enter", *(name for name in ENDS if name in names)):
        assert getattr(routines, name) == ADDRESS + names[name]


def test_the_copies_that_finish_an_exit_differ_in_how_they_end_only(assembled):
    code, routines, listing = assembled
    _, names = lines_of(listing())
    start, end = names["leave"], names["finish_leave"]
    original, copy = code[start:end], code[start + routines.finish : end + routines.finish]
    differing = [number for number, pair in enumerate(zip(original, copy, strict=True)) if pair[0] != pair[1]]
    most, few = (18, 16) if routines.unwind else (16, 10)
    sizes = {"leave_caller": most, "leave_switch": 19}
    restoring = {names[name + "_done"] - start: sizes.get(name, few) for name in ENDS if name in names}
    calls = [number for number in differing if not any(at <= number < at + size for at, size in restoring.items())]
    inner = [text for at, _, text in lines_of(listing())[0] if start <= at < end]
    clock = [text for text in inner if text in ("call now", "call acquire", "call waited", "call moment")]
    assert bool(calls) == bool(clock)  # whose displacements depend on where they are
    for at, size in restoring.items():
        assert copy[at : at + size] == b"\xc3" + b"\xcc" * (size - 1)


def test_the_top_is_compared_and_lowered_by_one_instruction(assembled):
    """So a signal handler that drops the same tombstone in between is seen, and no instance is dropped with it."""
    code, routines, _ = assembled
    texts = {address: text for address, _, text in disassemble.format(code, ADDRESS)}
    shrinking = [each for each in routines.stretches if each.name.endswith("_shrink")]
    assert len(shrinking) == len(ENDS) - (not routines.leave_switch)
    for each in shrinking:
        inside = [text for address, text in texts.items() if each.start <= address < each.end][:11]
        assert inside[-1].startswith("jmp ")
        top = [text for text in inside if "[rdi+0x8]" in text]
        assert top == ["mov rax, [rdi+0x8]", "cmpxchg [rdi+0x8], rsi"], each.name


def texts_of(clock):
    code, _, _ = assemble_routines(RoutineFacts(LAYOUT, 0x4000_0000_0000, 0x7100_0000, 0x208, clock), ADDRESS)
    return [text for _, _, text in disassemble.format(code, ADDRESS)]


def test_the_tsc_is_read_where_no_other_clock_is_given():
    assert texts_of(0).count("rdtsc") == 7  # entry, returns, their trials, return points; copies
    assert not any(text.startswith("movaps") for text in texts_of(0))


def test_another_clock_is_called_with_an_aligned_stack_and_everything_saved():
    texts = texts_of(0x7FFF_1234_5670)
    assert "rdtsc" not in texts
    now = texts[texts.index("pushfq", texts.index("cld") - 1) :]
    call = now.index("call rax")
    before, after = now[:call], now[call + 1 :]
    pushed = [text.split()[1] for text in before if text.startswith("push ")]
    popped = [text.split()[1] for text in after if text.startswith("pop ")]
    assert pushed == popped[::-1] == ["rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "rbp"]
    stored = [text.removeprefix("movaps ").split(", ") for text in before if text.startswith("movaps")]
    loaded = [text.removeprefix("movaps ").split(", ")[::-1] for text in after if text.startswith("movaps")]
    assert stored == loaded
    assert [(0x10 + 16 * n, f"xmm{n}") for n in range(16)] == [
        (int(place[5:-1], 16), register) for place, register in stored
    ]
    assert "and rsp, 0xfffffffffffffff0" in before
    assert before[-3:] == ["mov edi, 0x1", "mov rsi, rsp", "mov rax, 0x7fff12345670"]
    assert (before[:2], after[-2:]) == (["pushfq", "cld"], ["popfq", "ret"])


def test_nothing_runs_past_the_end(assembled):
    code, _, _ = assembled
    insns = decode_range(code, ADDRESS)
    assert not insns[-1].falls_through
    assert all(insn.flow is not Flow.INVALID for insn in insns)
    assert all(ADDRESS <= insn.target < ADDRESS + len(code) for insn in insns if insn.target is not None)


# -- what it does


class Outcome:
    """What a bank holds after some steps, by block."""

    def __init__(self, result):
        self.words = {int(offset): value for offset, value in result["words"].items()}
        self.slot, self.thread, self.top = result["slot"], result["thread"], result["top_of_stack"]
        self.tid, self.noted = result["tid"], [tuple(pair) for pair in result["noted"]]

    def at(self, offset):
        return self.words.get(offset, 0)

    def record(self, block=FIRST, record=RECORD):
        fields = {
            "count": RECORD_COUNT,
            "tail": RECORD_TAIL,
            "learning": RECORD_LEARNING,
            "unmatched": RECORD_UNMATCHED,
            "missed": RECORD_MISSED,
            "left": RECORD_LEFT,
        }
        found = {name: self.at(block + record + place) for name, place in fields.items()}
        return {name: value for name, value in found.items() if value}

    def stack(self, block=FIRST):
        """Return (depth, record) of the instances, from the bottom; tombstones and free ones as numbers."""
        first, found = block + LAYOUT.instances_offset, []
        for number in range(self.at(block + BLOCK_TOP)):
            at = first + number * INSTANCE_BYTES
            pointer = self.at(at + INSTANCE_SP)
            found.append(pointer if pointer < 2 else (self.depth(pointer), self.at(at + INSTANCE_RECORD)))
        return found

    def depth(self, pointer):
        depth, rest = divmod(self.top - pointer, 0x40)
        assert rest == 0
        return depth

    def near(self, bucket, block=FIRST, record=RECORD):
        return self.at(block + record + RECORD_BUCKETS + 4 * bucket & ~7) >> 32 * (bucket % 2) & 0xFFFF_FFFF

    def buckets(self, block=FIRST, record=RECORD):
        found = {at: self.at(block + LAYOUT.far_of(record) + 8 * at) for at in range(BUCKETS)}
        for at in range(NEAR_BUCKETS):
            found[at] += self.near(at, block, record)
        return {at: count for at, count in found.items() if count}


def after(*steps, noted=0, by_thread=False):
    """Return the outcome of some steps in a process of their own; every call must have preserved everything."""
    return Outcome(run_routines(steps, noted, *([0, "apart"] if by_thread else [])))


def count(offset=COUNTER):
    return ("call", "count", offset, 0)


def enter(depth=0, record=RECORD):
    return ("call", "enter", record, depth)


def leave(depth=0, record=RECORD):
    return ("call", "leave", record, depth)


def leave_tail(depth=0, record=RECORD):
    return ("call", "leave_tail", record, depth)


def jump_away(depth=0, record=RECORD, point=POINT):
    return ("end", "leave_tail", record, depth, point)


def come_back(depth=0, record=RECORD, flags=0):
    return ("end", "leave_caller", record | JUMPED | flags, depth, 0)


def unwind():
    return count(BLOCK_UNWOUND)


def known(state=CALLER_WATCHED, point=POINT, record=RECORD):
    return ("know", point, record, state)


def instance(number, field):
    return FIRST + LAYOUT.instances_offset + number * INSTANCE_BYTES + field


@native
def test_the_first_hit_makes_the_thread_s_block():
    outcome = after(count())
    assert outcome.slot == FIRST
    assert outcome.at(NEXT_BLOCK) == 1
    assert outcome.at(FIRST + BLOCK_OWNER) == outcome.thread
    assert outcome.at(FIRST + COUNTER) == 1
    assert outcome.at(SHARED + COUNTER) == 0


@native
def test_later_hits_find_the_block():
    outcome = after(count(), count(), count(COUNTER + 8), enter(), count())
    assert outcome.at(NEXT_BLOCK) == 1
    assert outcome.at(FIRST + COUNTER) == 3
    assert outcome.at(FIRST + COUNTER + 8) == 1


@native
def test_a_thread_takes_over_the_block_of_the_one_that_had_its_thread_pointer():
    outcome = after(count(), ("slot", 0), count(), enter(), leave(), ("slot", 0), count())
    assert outcome.slot == FIRST
    assert outcome.at(NEXT_BLOCK) == 1
    assert outcome.at(FIRST + COUNTER) == 3
    assert outcome.record() == {"count": 1}


@native
def test_threads_get_blocks_until_none_is_left():
    others = [("write", FIRST + number * LAYOUT.stride + BLOCK_OWNER, 0x7000) for number in range(BLOCKS)]
    steps = (count(), ("slot", 0), others[0], count(), ("slot", 0), others[1], count(), count(), enter(), leave())
    outcome = after(*steps)
    assert [outcome.at(FIRST + number * LAYOUT.stride + COUNTER) for number in range(BLOCKS)] == [1, 1]
    assert outcome.at(SHARED + COUNTER) == 2
    assert outcome.slot == 0
    assert outcome.record(SHARED) == {"missed": 1, "unmatched": 1}
    assert outcome.at(FIRST + BLOCKS * LAYOUT.stride + COUNTER) == 0


@native
def test_a_fork_child_counts_in_the_shared_block_and_times_nothing():
    outcome = after(count(), ("gate", 0), count(), enter(), leave(), leave_tail())
    assert outcome.at(FIRST + COUNTER) == 1
    assert outcome.at(SHARED + COUNTER) == 1
    assert outcome.at(NEXT_BLOCK) == 1
    assert outcome.record(SHARED) == {"missed": 1}
    assert outcome.record() == {}
    assert outcome.stack() == []


@native
def test_a_fork_child_has_a_block_while_no_more_than_half_are_handed_out():
    """All its hits are there, under the number of its thread; the next child's, and those of threads, are not."""
    outcome = after(("gate", 0), count(), count(), count(COUNTER + 8), enter())
    assert outcome.at(NEXT_BLOCK) == 1
    assert outcome.at(FIRST + BLOCK_OWNER) >> CHILD_BIT == 1
    assert outcome.at(FIRST + BLOCK_OWNER) & 0xFFFFFFFF == outcome.tid
    assert (outcome.at(FIRST + COUNTER), outcome.at(FIRST + COUNTER + 8)) == (2, 1)
    assert (outcome.at(SHARED + COUNTER), outcome.slot) == (0, 0)
    assert outcome.record(SHARED) == {"missed": 1}
    outcome = after(("gate", 0), count(), ("own", 0), count())
    assert (outcome.at(FIRST + COUNTER), outcome.at(SHARED + COUNTER), outcome.at(NEXT_BLOCK)) == (1, 1, 1)


@native
def test_an_entry_is_on_the_stack_until_its_exit():
    outcome = after(enter(depth=3))
    assert outcome.slot == FIRST
    assert outcome.stack() == [(3, RECORD)]
    outcome = after(enter(depth=3), leave(depth=3))
    assert outcome.stack() == []
    assert outcome.record() == {"count": 1}
    assert outcome.at(instance(0, INSTANCE_SP)) == 0


@native
def test_recursion_matches_each_level():
    outcome = after(enter(0), enter(1), enter(2), leave(2), leave(1), enter(1), leave(1))
    assert outcome.stack() == [(0, RECORD)]
    assert outcome.record() == {"count": 3}


def short_calls(calls):
    """Return the steps of calls that take less than no time."""
    return [enter(), ("age", instance(0, INSTANCE_T0), -(1 << 40)), leave()] * calls


@native
def test_a_near_bucket_that_is_full_goes_on_in_the_far_one():
    """By one instruction for each call, so that both together are always right."""
    near = FIRST + RECORD + RECORD_BUCKETS
    for already, left in ((0, 3), ((1 << 31) - 2, 2), (1 << 31, 0)):
        outcome = after(("write", near, already), *short_calls(3))
        assert (outcome.near(0), outcome.near(1)) == (already + left, 0)
        assert outcome.at(FIRST + LAYOUT.far_of(RECORD)) == 3 - left
        assert outcome.buckets() == {0: already + 3}


@native
@pytest.mark.parametrize("record", [RECORD, OTHER])
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_call_is_in_the_bucket_of_its_own_record_however_long_it_is(record, comes_back):
    ends = [jump_away(record=record), come_back(record=record)] if comes_back else [leave(record=record)]
    long = [enter(record=record), ("age", instance(0, INSTANCE_T0), 1 << 40), *ends]
    outcome = after(known(record=record), *long, *long, noted=NOTED)
    (bucket,) = (at for at in range(BUCKETS) if outcome.at(FIRST + LAYOUT.far_of(record) + 8 * at))
    assert bucket == clamped_index((1 << 40) + 1)
    assert outcome.buckets(record=record) == {bucket: 2}
    assert outcome.buckets(record=OTHER if record == RECORD else RECORD) == {}


@native
def test_two_functions_at_one_stack_pointer():
    outcome = after(enter(0), leave_tail(0), enter(0, OTHER), leave(0, OTHER))
    assert outcome.record() == {"tail": 1}
    assert outcome.record(record=OTHER) == {"count": 1}
    assert outcome.stack() == []
    assert outcome.buckets() == {}


@native
def test_the_record_must_match_too():
    outcome = after(enter(0), leave(0, OTHER))
    assert outcome.record(record=OTHER) == {"unmatched": 1}
    assert outcome.stack() == [(0, RECORD)]


@native
def test_exits_without_an_entry_are_unmatched():
    outcome = after(count(), leave(0), leave_tail(1), enter(0), leave(1), leave(0))
    assert outcome.record() == {"count": 1, "unmatched": 3}
    assert outcome.stack() == []


@native
@pytest.mark.parametrize("way", [leave, leave_tail])
def test_exits_of_a_thread_without_a_block_are_unmatched_in_the_shared_block(way):
    outcome = after(way(0))
    assert outcome.record(SHARED) == {"unmatched": 1}
    assert outcome.slot == 0


@native
def test_exits_out_of_order_leave_tombstones():
    outcome = after(enter(0), enter(1), enter(2), leave(1))
    assert outcome.stack() == [(0, RECORD), TOMBSTONE, (2, RECORD)]
    assert outcome.record() == {"count": 1}


@native
def test_tombstones_go_once_they_are_on_top():
    # the search that finds the top's neighbour drops every tombstone above it
    outcome = after(enter(0), enter(1), enter(2), enter(3), leave(2), leave(1), leave(3), leave(0))
    assert outcome.record() == {"count": 4}
    assert outcome.stack() == []
    assert [outcome.at(instance(number, INSTANCE_SP)) for number in range(4)] == [0] * 4


@native
def test_a_reserved_instance_matches_nothing_and_stays():
    # as a signal handler sees it: the code below has raised the top and not filled the instance
    outcome = after(enter(0), ("write", FIRST + BLOCK_TOP, 2), enter(2), leave(2), leave(0))
    assert outcome.record() == {"count": 2}
    assert outcome.stack() == [TOMBSTONE, 0]


@native
def test_too_many_entries_are_missed():
    outcome = after(*(enter(depth) for depth in range(MAXACTIVE + 2)))
    assert outcome.record() == {"missed": 2}
    assert outcome.stack() == [(depth, RECORD) for depth in range(MAXACTIVE)]
    assert outcome.at(FIRST + BLOCK_PURGING) == 0


@native
def test_leftovers_with_our_stack_pointer_are_dropped_when_the_stack_is_full():
    outcome = after(*(enter(depth) for depth in range(MAXACTIVE)), enter(1, OTHER))
    assert outcome.stack() == [(0, RECORD), (2, RECORD), (3, RECORD), (1, OTHER)]
    assert outcome.record() == {"left": 1}
    assert outcome.at(FIRST + BLOCK_PURGING) == 0


@native
def test_what_the_same_function_has_followed_is_dropped_at_any_stack_pointer():
    outcome = after(enter(0), enter(1), enter(1), enter(1), enter(2), leave(2), leave(1), leave(0))
    assert outcome.stack() == []
    assert outcome.record() == {"count": 3, "left": 2}
    outcome = after(enter(0), *(enter(depth) for _ in range(500) for depth in (1, 2)), enter(3), leave(0))
    assert outcome.record() == {"count": 1, "left": 998}
    assert outcome.stack() == [TOMBSTONE, (1, RECORD), (2, RECORD), (3, RECORD)]


@native
def test_what_another_function_has_followed_is_not_dropped_at_other_stack_pointers():
    # two probes at one entry
    outcome = after(enter(0), enter(1), enter(1, OTHER), enter(2), enter(3))
    assert outcome.stack() == [(0, RECORD), (1, RECORD), (1, OTHER), (2, RECORD)]
    assert outcome.record() == {"missed": 1}


@native
def test_what_has_left_by_a_jump_is_not_dropped_at_other_stack_pointers():
    fill = [enter(depth) for depth in (0, 1, 1, 2)]
    outcome = after(*fill, ("write", instance(1, INSTANCE_RECORD), RECORD | JUMPED), enter(3))
    assert outcome.stack() == [(0, RECORD), (1, RECORD | JUMPED), (1, RECORD), (2, RECORD)]
    assert outcome.record() == {"missed": 1}
    # what follows may have left its function by now
    outcome = after(*fill, ("write", instance(2, INSTANCE_RECORD), RECORD | JUMPED), enter(3))
    assert outcome.stack() == [(0, RECORD), (1, RECORD | JUMPED), (2, RECORD), (3, RECORD)]
    assert outcome.record() == {"left": 1}


@native
def test_calls_with_replaced_return_addresses_are_not_dropped_at_other_stack_pointers():
    fill = [enter(depth) for depth in (0, 1, 1, 2)]
    outcome = after(*fill, ("write", FIRST + RECORD + RECORD_REPLACED, 1), enter(3))
    assert outcome.stack() == [(0, RECORD), (1, RECORD), (1, RECORD), (2, RECORD)]
    assert outcome.record() == {"missed": 1}


@native
@pytest.mark.parametrize("word", [0, 64, 128, 192])
def test_no_more_is_dropped_whatever_an_earlier_look_has_left(word):
    stale = [("write", instance(number, INSTANCE_LATER), word) for number in range(MAXACTIVE)]
    outcome = after(*stale, *(enter(depth) for depth in (0, 1, 2, 3)), enter(4), leave(3))
    assert outcome.stack() == [(0, RECORD), (1, RECORD), (2, RECORD)]
    assert outcome.record() == {"missed": 1, "count": 1}


@native
def test_purged_instances_keep_their_times():
    steps = [enter(depth) for depth in range(MAXACTIVE)]
    outcome = after(*steps, enter(0), leave(0), leave(3), leave(2), leave(1))
    assert outcome.record() == {"count": 4, "left": 1}
    assert outcome.stack() == []
    assert outcome.at(FIRST + RECORD + RECORD_MAX) < 1 << 40


@native
def test_several_leftovers_and_tombstones_go_at_once():
    outcome = after(enter(0), enter(1), enter(1), enter(2), leave(1), enter(1))
    assert outcome.stack() == [(0, RECORD), (2, RECORD), (1, RECORD)]
    assert outcome.at(instance(3, INSTANCE_SP)) == 0


@native
def test_what_another_probe_at_this_entry_has_just_pushed_is_no_leftover():
    outcome = after(enter(0), enter(0, OTHER), enter(1), enter(1, OTHER), enter(2), enter(2, OTHER))
    assert outcome.stack() == [(0, RECORD), (0, OTHER), (1, RECORD), (1, OTHER)]
    assert (outcome.record(), outcome.record(FIRST, OTHER)) == ({"missed": 1}, {"missed": 1})
    outcome = after(enter(0), enter(1), enter(2), enter(3, RECORD), enter(3, OTHER), leave(3))
    assert outcome.stack() == [(0, RECORD), (1, RECORD), (2, RECORD)]
    assert (outcome.record(), outcome.record(FIRST, OTHER)) == ({"count": 1}, {"missed": 1})


@native
def test_leftovers_of_several_probes_at_one_entry_are_dropped():
    outcome = after(enter(0), enter(0, OTHER), enter(1), enter(1, OTHER), enter(0), enter(0, OTHER))
    assert outcome.stack() == [(1, RECORD), (1, OTHER), (0, RECORD), (0, OTHER)]
    # the last one pushed may be this call's until its own record comes
    outcome = after(enter(0), enter(1), enter(2), enter(2, OTHER), enter(2), enter(2, OTHER))
    assert outcome.stack() == [(0, RECORD), (1, RECORD), (2, RECORD), (2, OTHER)]
    assert (outcome.record(), outcome.record(FIRST, OTHER)) == ({"left": 1}, {"left": 1})


@native
def test_nothing_moves_while_an_instance_is_reserved():
    fill = [enter(depth) for depth in range(MAXACTIVE)]
    outcome = after(*fill, ("write", instance(2, INSTANCE_SP), 0), enter(1))
    assert outcome.stack() == [(0, RECORD), (1, RECORD), 0, (3, RECORD)]
    assert outcome.record() == {"missed": 1}
    assert outcome.at(FIRST + BLOCK_PURGING) == 0


@native
def test_a_handler_never_purges_within_a_purge():
    fill = [enter(depth) for depth in range(MAXACTIVE)]
    outcome = after(*fill, ("write", FIRST + BLOCK_PURGING, 1), enter(1))
    assert outcome.stack() == [(depth, RECORD) for depth in range(MAXACTIVE)]
    assert outcome.record() == {"missed": 1}
    assert outcome.at(FIRST + BLOCK_PURGING) == 1


@native
@pytest.mark.parametrize("age", [0, 1000, 10**5, 10**7, 2**33 + 12345, 2**43, 2**44, 2**60])
def test_durations_go_to_the_bucket_that_the_reader_knows(age):
    outcome = after(enter(), ("age", instance(0, INSTANCE_T0), age), leave())
    ticks = outcome.at(FIRST + RECORD + RECORD_SUM)
    assert age <= ticks < age + (1 << 32)
    assert outcome.buckets() == {clamped_index(ticks): 1}
    assert outcome.at(FIRST + RECORD + RECORD_MAX) == ticks
    assert outcome.at(FIRST + RECORD + RECORD_NOT_MIN) == (1 << 64) - 1 - ticks


@native
def test_a_negative_duration_counts_as_zero_but_in_the_sum():
    outcome = after(enter(), ("age", instance(0, INSTANCE_T0), -(1 << 40)), leave())
    assert outcome.buckets() == {0: 1}
    assert outcome.at(FIRST + RECORD + RECORD_SUM) - (1 << 64) == pytest.approx(-(1 << 40), abs=1 << 30)
    assert outcome.at(FIRST + RECORD + RECORD_MAX) == 0
    assert outcome.at(FIRST + RECORD + RECORD_NOT_MIN) == (1 << 64) - 1


@native
def test_the_extremes_are_of_all_durations():
    ages = (1 << 36, 1 << 33, 1 << 41, 1 << 38)
    steps = []
    for age in ages:
        steps += [enter(), ("age", instance(0, INSTANCE_T0), age), leave()]
    outcome = after(*steps)
    low = (1 << 64) - 1 - outcome.at(FIRST + RECORD + RECORD_NOT_MIN)
    assert 1 << 33 <= low < 1 << 34
    assert 1 << 41 <= outcome.at(FIRST + RECORD + RECORD_MAX) < 1 << 42
    assert sum(ages) <= outcome.at(FIRST + RECORD + RECORD_SUM) < sum(ages) + (1 << 34)
    assert sum(outcome.buckets().values()) == outcome.record()["count"] == 4


@native
def test_registers_flags_and_the_red_zone_are_preserved_on_every_path():
    # each call starts from other random registers and flags, and ``after`` looks at all of them
    steps = [count(), count(), leave(), *(enter(depth % 5) for depth in range(40))]
    steps += [way(depth % 5) for depth in range(10) for way in (leave, leave_tail)]
    steps += [("slot", 0), enter(), ("slot", 0), enter(), leave(), ("gate", 0), count(), enter(), leave()]
    steps += [step for _ in range(60) for step in (("gate", 1), count(), enter(), leave())]
    after(*steps)


# -- calls that end where their caller goes on


def ended(*steps):
    return after(count(), *steps, noted=NOTED)


@native
def test_a_call_that_left_by_a_jump_ends_at_its_return_point():
    outcome = ended(known(), enter(0), jump_away(0), come_back(0))
    assert outcome.record() == {"count": 1}
    assert outcome.stack() == outcome.noted == []
    assert sum(outcome.buckets().values()) == 1


@native
def test_its_time_includes_what_it_jumped_to():
    steps = known(), enter(0), jump_away(0), ("age", instance(0, INSTANCE_T0), 1 << 40), come_back(0)
    assert ended(*steps).at(FIRST + RECORD + RECORD_SUM) >> 40 == 1


@native
def test_until_it_comes_back_it_is_in_flight():
    assert ended(known(), enter(0), jump_away(0)).stack() == [(0, RECORD | JUMPED)]


@native
def test_open_calls_that_have_jumped_are_looked_for_as_long_as_there_are_any():
    jumped = FIRST + RECORD + RECORD_JUMPED
    steps = known(), enter(0), jump_away(0)
    assert ended(*steps).at(jumped) == 1
    assert ended(*steps, come_back(0)).at(jumped) == 0
    assert ended(*steps, ("write", jumped, 0), come_back(0)).stack() == [(0, RECORD | JUMPED)]
    chain = enter(1), jump_away(1), enter(1), jump_away(1)
    assert ended(*steps, *chain).at(jumped) == 3
    outcome = ended(*steps, *chain, come_back(1))
    assert (outcome.at(jumped), outcome.record()) == (1, {"count": 2})
    outcome = ended(*steps, *(enter(depth) for depth in range(1, MAXACTIVE)), enter(0, OTHER))
    assert (outcome.at(jumped), outcome.record()) == (0, {"missed": 1})


@native
def test_a_return_point_that_is_not_known_is_noted_once_and_the_calls_are_counted():
    outcome = ended(*(step for _ in range(3) for step in (enter(0), jump_away(0), come_back(0))))
    assert outcome.record() == {"learning": 3}
    assert outcome.noted == [(POINT, RECORD)]
    assert outcome.stack() == []


@native
def test_it_is_noted_for_each_function():
    outcome = ended(enter(0), jump_away(0), enter(0, OTHER), jump_away(0, OTHER))
    assert sorted(outcome.noted) == [(POINT, RECORD), (POINT, OTHER)]


@native
def test_what_was_noted_and_is_known_by_now_is_watched():
    outcome = ended(enter(0), jump_away(0), known(), enter(0), jump_away(0), come_back(0))
    assert outcome.record() == {"learning": 1, "count": 1}


@native
def test_calls_through_a_refused_return_point_leave_by_a_tail_jump():
    outcome = ended(known(CALLER_REFUSED), enter(0), jump_away(0), come_back(0))
    assert outcome.record() == {"tail": 1}
    assert outcome.stack() == outcome.noted == []


@native
def test_a_return_point_whose_splice_has_gone_is_learnt_again():
    outcome = ended(known(), known(CALLER_NEW), enter(0), jump_away(0))
    assert outcome.record() == {"learning": 1}


@native
def test_what_has_no_room_among_the_noted_is_a_tail_exit():
    points = [POINT + 16 * number for number in range(NOTED + 2)]
    outcome = ended(*(step for point in points for step in (enter(0), jump_away(0, point=point))))
    assert outcome.record() == {"learning": NOTED, "tail": 2}
    assert {point for point, _ in outcome.noted} == set(points[:NOTED])


@native
def test_all_known_pairs_are_found():
    points = [POINT + 24 * number for number in range(8)]
    steps = [known(point=point, record=record) for point in points for record in (RECORD, OTHER)]
    for point in points:
        steps += [enter(0, OTHER), jump_away(0, OTHER, point), come_back(0, OTHER)]
    outcome = ended(*steps)
    assert outcome.record(record=OTHER) == {"count": 8}
    assert outcome.noted == []


@native
def test_another_call_that_comes_back_there_ends_nothing():
    outcome = ended(known(), come_back(0), enter(0), come_back(0), come_back(1), jump_away(0), come_back(1))
    assert outcome.record() == {}
    assert outcome.stack() == [(0, RECORD | JUMPED)]


@native
def test_a_return_of_the_function_itself_is_no_matter_of_return_points():
    outcome = ended(known(), enter(0), leave(0), come_back(0))
    assert outcome.record() == {"count": 1}


@native
def test_nested_calls_end_each_in_its_caller():
    outcome = ended(
        known(), enter(0), enter(1), enter(2), jump_away(2), come_back(2), leave(1), jump_away(0), come_back(0)
    )
    assert outcome.record() == {"count": 3}
    assert outcome.stack() == []


@native
def test_functions_that_jump_to_each_other_end_together():
    known_both = known(), known(record=OTHER)
    steps = enter(0), jump_away(0), enter(0, OTHER), jump_away(0, OTHER), come_back(0), come_back(0, OTHER)
    outcome = ended(*known_both, *steps)
    assert outcome.record() == outcome.record(record=OTHER) == {"count": 1}
    assert outcome.stack() == []


@native
def test_calls_of_functions_that_jump_to_each_other_again_and_again_are_all_timed():
    known_both = known(), known(record=OTHER)
    away = enter(0), jump_away(0), enter(0, OTHER), jump_away(0, OTHER)
    outcome = ended(*known_both, *away, *away, come_back(0), come_back(0, OTHER))
    assert outcome.record() == outcome.record(record=OTHER) == {"count": 2}
    assert outcome.stack() == []
    assert sum(outcome.buckets().values()) == 2


@native
@pytest.mark.parametrize(
    ("flags", "record"), [(0, {"count": 1, "missed": 1}), (CERTAIN, {"count": 1, "missed": 1}), (UNSEEN, {"missed": 2})]
)
def test_what_an_exception_has_left_behind_is_missed_at_the_next_return(flags, record):
    outcome = ended(known(), enter(0), jump_away(0), unwind(), enter(0), jump_away(0), come_back(0, flags=flags))
    assert outcome.record() == record
    assert outcome.stack() == []


@native
@pytest.mark.parametrize(("flags", "record"), [(0, {"missed": 1}), (CERTAIN, {"count": 1}), (UNSEEN, {"missed": 1})])
def test_a_call_in_which_an_exception_went_by_is_timed_only_where_nothing_else_is_called(flags, record):
    assert ended(known(), enter(0), jump_away(0), unwind(), come_back(0, flags=flags)).record() == record


@native
def test_one_call_is_certain_where_it_is_not_seen_what_leaves_calls_behind():
    flags = CERTAIN | UNSEEN
    assert ended(known(), enter(0), jump_away(0), come_back(0, flags=flags)).record() == {"count": 1}


@native
def test_what_exceptions_have_left_behind_does_not_fill_the_stack():
    steps = [step for _ in range(MAXACTIVE + 3) for step in (enter(1), jump_away(1))]
    outcome = ended(known(), enter(0), *steps, enter(2), leave(2), leave(0))
    assert outcome.record() == {"count": 2, "missed": MAXACTIVE + 2}
    assert outcome.stack() == [TOMBSTONE, (1, RECORD | JUMPED)]


@native
def test_fork_children_and_threads_without_a_block_end_nothing():
    outcome = after(come_back(0), ("gate", 0), come_back(0), noted=NOTED)
    assert outcome.record(SHARED) == outcome.record() == {}


@native
def test_everything_is_preserved_on_the_ways_of_return_points():
    steps = [count(), known(), known(CALLER_REFUSED, SECOND)]
    for depth in range(40):
        point = (POINT, SECOND, POINT + depth)[depth % 3]
        steps += [enter(depth % 5), jump_away(depth % 5, point=point), come_back((depth + depth % 2) % 5)]
    after(*steps, noted=NOTED)


def owned_by(block, tid):
    """Have another thread's number in a block, as if that had had the stack before this thread."""
    return ("write", block + (BLOCK_TID & ~7), tid << 32)


def tid_in(outcome, block):
    return outcome.at(block + (BLOCK_TID & ~7)) >> 32


@native
def test_a_thread_that_has_the_stack_of_another_one_gets_a_block_of_its_own():
    call = (("call", "enter", RECORD, 0), ("call", "leave", RECORD, 0))
    outcome = after(*call, *call, owned_by(FIRST, 7), *call, by_thread=True)
    second = FIRST + LAYOUT.stride
    assert (outcome.at(FIRST + RECORD + RECORD_COUNT), tid_in(outcome, FIRST)) == (2, 7)
    assert (outcome.at(second + RECORD + RECORD_COUNT), tid_in(outcome, second)) == (1, outcome.tid)
    assert outcome.slot == second


@native
def test_without_a_block_left_calls_of_several_threads_are_in_one():
    call = (("call", "enter", RECORD, 0), ("call", "leave", RECORD, 0))
    second = FIRST + LAYOUT.stride
    outcome = after(*call, owned_by(FIRST, 7), *call, owned_by(second, 8), *call, *call, by_thread=True)
    assert (outcome.at(FIRST + RECORD + RECORD_COUNT), tid_in(outcome, FIRST)) == (1, 7)
    assert (outcome.at(second + RECORD + RECORD_COUNT), tid_in(outcome, second)) == (3, ANY_THREAD)
    assert outcome.at(SHARED + RECORD + RECORD_MISSED) == 0


@native
def test_a_block_that_is_nobodys_is_taken():
    """Fork children find one so: their copy of it is empty."""
    call = (("call", "enter", RECORD, 0), ("call", "leave", RECORD, 0))
    outcome = after(count(), owned_by(FIRST, 0), *call, by_thread=True)
    assert (outcome.at(FIRST + RECORD + RECORD_COUNT), tid_in(outcome, FIRST)) == (1, outcome.tid)
    assert outcome.slot == FIRST
