"""Changes without a stop, as bytes: up to any of them the program is the old one, the new one, or at an int3."""

import random
from dataclasses import replace

import pytest

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import decode_range
from anyprobe.journal.records import FoundJournal, Owner, Record, RecordKind
from anyprobe.splice.apply.live.writes import Rewrite, sites_of, steps
from anyprobe.splice.apply.recovery.restoring import TextRestoration, in_window
from anyprobe.splice.emitted import EmittedPatch, EmittedSplice, FunctionChange
from anyprobe.splice.plan.splices import PlannedSplice, Strategy, Want, WantKind
from anyprobe.splice.plan.springboards import Springboards
from support.planning import LivePlanner
from unit.splice.plan.test_planner import BASE, ENTRY, LOOP, MOV, NEXT, RET, Case, exit_at, reasons, shape

INT3 = b"\xcc"
PATCH = 0x7000_0000
PLAIN = bytes.fromhex("b8 01 00 00 00")  # mov eax, 1
JUMP, OTHER_JUMP = bytes.fromhex("e9 11 22 33 44"), bytes.fromhex("e9 55 66 77 08")
LONGER = bytes.fromhex("48 81 ec 00 10 00 00")  # sub rsp, 0x1000
SEVERAL_BYTES = [(PLAIN, JUMP), (JUMP, PLAIN), (JUMP, OTHER_JUMP), (LONGER[:5], JUMP)]


def in_any_order(writes, chance):
    """Return the bytes of writes one by one: those of one write become visible in any order."""
    single = []
    for address, content in writes:
        stores = [(address + at, content[at : at + 1]) for at in range(len(content))]
        single += chance.sample(stores, len(stores))
    return single


# -- the protocol


@pytest.mark.parametrize(("old", "new"), SEVERAL_BYTES)
def test_every_prefix_is_a_correct_program(old, new):
    """Up to each byte: either version whole, or an int3 in front of whatever; never one head and parts of both."""
    chance = random.Random(1)
    for _ in range(50):
        memory = bytearray(old)
        for number, writes in enumerate(steps([Rewrite(0, old, new, PATCH)])):
            for address, content in in_any_order(writes, chance):
                memory[address : address + 1] = content
                assert memory in (old, new) or in_window(bytes(memory), old, new)
                assert (memory[:1] == INT3) == (number < 2)
        assert memory == new


@pytest.mark.parametrize(("old", "new"), SEVERAL_BYTES)
def test_what_is_behind_the_first_byte_changes_between_two_barriers(old, new):
    """No core that has seen one of the barriers can have fetched a mixture."""
    first, tails, last = steps([Rewrite(0, old, new, PATCH)])
    assert first == [(0, INT3)]
    assert [address for address, _ in last] == [0]
    assert all(address > 0 for address, _ in tails)


def test_one_byte_is_one_store():
    first, tails, last = steps([Rewrite(8, b"\x48", b"\xe9", PATCH)])
    assert (first, tails, last) == ([(8, b"\xe9")], [], [])
    assert Rewrite(8, PLAIN, b"\xe9" + PLAIN[1:], PATCH).is_single
    assert not Rewrite(8, JUMP, OTHER_JUMP, PATCH).is_single  # the first byte is the same, and more than one differs


def test_branches_to_the_entry_go_behind_its_counter_before_it_counts():
    """Armed: loops, exits, entry. Taken out: the other way round, whether by one byte or by several."""
    loop = Rewrite(0x30, b"\x72", b"\xe9", PATCH, rank=0)
    leave = Rewrite(0x20, b"\xc3", b"\xe9", PATCH, rank=1)
    entry = Rewrite(0x10, PLAIN, JUMP, PATCH, rank=3)
    first, _, last = steps([entry, leave, loop])
    assert first == [(0x30, b"\xe9"), (0x20, b"\xe9"), (0x10, INT3)]
    assert last == [(0x10, b"\xe9")]
    out = [Rewrite(one.address, one.new, one.old, PATCH, arming=False, rank=one.rank) for one in (loop, leave, entry)]
    first, _, last = steps(out)
    assert first == [(0x10, INT3)]
    assert last == [(0x10, PLAIN[:1]), (0x20, b"\xc3"), (0x30, b"\x72")]


def test_what_an_int3_in_the_middle_looks_like():
    assert in_window(INT3 + PLAIN[1:], PLAIN, JUMP)
    assert in_window(INT3 + JUMP[1:], PLAIN, JUMP)
    assert in_window(INT3 + JUMP[1:3] + PLAIN[3:], PLAIN, JUMP)
    assert in_window(INT3 + OTHER_JUMP[1:3] + PLAIN[3:], PLAIN, JUMP, PLAIN, OTHER_JUMP)
    assert not in_window(JUMP, PLAIN, JUMP)
    assert not in_window(INT3 + OTHER_JUMP[1:], PLAIN, JUMP)


# -- what can be changed so


def splice(code, *, written=5, strategy=Strategy.JUMP, new=JUMP, at=BASE, count=1, write_at=0, kind=WantKind.ENTRY):
    insns = tuple(decode_range(code, at)[:count])
    planned = PlannedSplice(strategy, at, insns, [Want(at, kind)], written, at + write_at)
    return EmittedSplice(planned, 0, at + write_at, code[:written], new, EmittedPatch(PATCH, b"", (), (), PATCH))


def change(added=(), removed=()):
    return FunctionChange(BASE, tuple(removed), tuple(added))


def test_the_sites_of_a_change():
    (site,) = sites_of(change([splice(PLAIN)]))
    assert site.expected == (PLAIN, JUMP)
    (site,) = sites_of(change(removed=[splice(PLAIN)]))
    assert site.expected == (JUMP, PLAIN)
    (site,) = sites_of(change([splice(PLAIN, new=OTHER_JUMP)], [splice(PLAIN)]))
    assert site.expected == (JUMP, OTHER_JUMP)


def test_a_jump_of_another_length_takes_the_place():
    one_byte = splice(PLAIN, written=1, new=b"\xe9", strategy=Strategy.PUNNED)
    (site,) = sites_of(change([splice(PLAIN)], [one_byte]))
    assert site.expected == (b"\xe9" + PLAIN[1:], JUMP)
    (site,) = sites_of(change([one_byte], [splice(PLAIN)]))
    assert site.expected == (JUMP, b"\xe9" + PLAIN[1:])


def test_a_jump_over_several_instructions_goes_without_a_stop_but_does_not_come():
    several = splice(bytes.fromhex("55 48 89 e5 5d"), count=3)
    assert sites_of(change([several])).reason is Reason.NEEDS_STOP
    (site,) = sites_of(change(removed=[several]))
    rewrite = site.rewrite(*site.expected)
    assert rewrite.ambiguous  # push rbp is one byte: a pc behind it need not mean an int3
    assert rewrite.if_undone == several.old  # threads may be between the instructions by then


def test_a_jump_over_several_instructions_is_not_replaced_by_one_over_the_first():
    """Who is led into the new patch by the int3 comes back to where the old jump still is."""
    code = bytes.fromhex("55 48 89 e5 5d")
    several, first = splice(code, count=3), splice(code, written=1, new=b"\xe9", strategy=Strategy.PUNNED)
    assert sites_of(change([first], [several])).reason is Reason.NEEDS_STOP
    (site,) = sites_of(change([first]))
    assert site.rewrite(*site.expected).if_undone == first.old


@pytest.mark.parametrize(
    "each",
    [
        splice(bytes.fromhex("0f 05"), written=2, new=b"\xe9\x01", strategy=Strategy.PUNNED),
        splice(PLAIN, written=2, new=b"\xeb\x10", strategy=Strategy.SHORT),
        splice(bytes.fromhex("e8 01 02 03 04"), written=4, new=b"\1\2\3\4", strategy=Strategy.RETARGET, write_at=1),
        splice(PLAIN, written=1, new=INT3, strategy=Strategy.TRAP),
        splice(bytes.fromhex("cc b8 01 00 00"), written=5),
    ],
    ids=["syscall", "short", "retarget", "trap", "own-int3"],
)
def test_what_needs_a_stop(each):
    for one in (change([each]), change(removed=[each])):
        found = sites_of(one)
        assert isinstance(found, Refusal)
        assert found.reason is Reason.NEEDS_STOP


def test_an_old_splice_that_depends_on_bytes_to_be_written():
    old = splice(bytes.fromhex("31 c0"), written=2, new=b"\xe9\x01", strategy=Strategy.PUNNED)
    old = replace(old, borrowed=bytes(3))
    assert sites_of(change([splice(PLAIN, at=BASE + 2)], [old])).reason is Reason.NEEDS_STOP
    assert len(sites_of(change([splice(PLAIN, at=BASE + 5)], [old]))) == 2


# -- plans


@pytest.fixture
def case(code_map):
    def make(*functions, **settings):
        made = Case(code_map, *functions, **settings)
        made.planner = LivePlanner(replace(made.planner.context, plain_jumps_only=True))
        return made

    return make


def test_one_new_byte_and_four_that_are_there(case):
    one = case(NEXT, reachable=lambda pun: True)
    (each,) = one.plan(ENTRY).splices
    assert (each.strategy, each.written, each.borrowed) == (Strategy.PUNNED, 1, 4)
    assert each.pun.base == BASE + 5 + 1  # e9 01 00 00 00
    assert each.pun.head_bytes(each.pun.base) == b"\xe9"
    assert one.claims.written == {BASE}
    assert set(one.claims.borrowed) == set(range(BASE + 1, BASE + 5))


def test_a_jump_in_place_where_nothing_can_be_mapped(case):
    assert shape(case(NEXT).plan(ENTRY)) == [("jump", 0, 1, 0, 5)]


def test_nothing_moves_but_one_instruction(case):
    # push rbp; mov rbp, rsp; pop rbp; ret
    assert reasons(case("55 48 89 e5 5d c3").plan(ENTRY)) == [Reason.PUN_OUT_OF_REACH]
    loop = case(LOOP, NEXT, reachable=lambda pun: True).plan((0, WantKind.OFFSET))
    assert [len(each.insns) for each in loop.splices] == [1]


def test_bytes_of_the_next_function_are_left_to_its_own_probes(case):
    reach = {"reachable": lambda pun: True}
    assert reasons(case("31 c0" + RET, MOV + RET, **reach).plan(exit_at(2))) == [Reason.BORROWED_BYTES]
    (each,) = case(MOV + RET + "|8", **reach).plan(exit_at(5)).splices
    assert (each.head - BASE, each.written, each.borrowed) == (5, 1, 4)


def test_the_one_springboard_serves_again(case):
    one = case(NEXT)
    place = BASE + 6
    one.planner.context.retired = {place: BASE}
    (each,) = one.plan(ENTRY).splices
    assert (each.written, each.springboard) == (1, place)
    other = case(NEXT)
    other.planner.context.retired = {place: BASE + 0x100}  # another site's: somebody may be on his way from there
    assert shape(other.plan(ENTRY)) == [("jump", 0, 1, 0, 5)]


def test_a_springboards_target_is_changed_by_one_store_within_a_line():
    assert Springboards.is_rewritable(0x1000)
    assert Springboards.is_rewritable(0x1032)
    assert not any(Springboards.is_rewritable(0x1033 + n) for n in range(7))


# -- what a dead controller leaves


def restored(plain_memory, found, *records):
    """Return what becomes of ``found`` at a site of a dead controller's journal, and what is foreign."""
    memory = plain_memory(BASE, 0x1000)
    memory.write(BASE, found)
    journal = FoundJournal(0, 0, Owner(bytes(16), 1, 1), tuple(enumerate(records)), 0)
    text = TextRestoration(memory, [journal])
    text.write([])
    return memory.read(BASE, len(found)), text.foreign


SPLICE = Record(RecordKind.SPLICE, BASE, 5, PATCH, PLAIN, JUMP)
WINDOW = Record(RecordKind.WINDOW, BASE, 5, 0, PLAIN, JUMP)


@pytest.mark.parametrize(
    "found", [PLAIN, INT3 + PLAIN[1:], INT3 + JUMP[1:3] + PLAIN[3:], INT3 + JUMP[1:], JUMP], ids=lambda each: each.hex()
)
def test_every_state_of_a_change_is_undone_from_the_journal(plain_memory, found):
    assert restored(plain_memory, found, SPLICE, WINDOW) == (PLAIN, ())


def test_a_change_from_one_patch_to_another_is_undone(plain_memory):
    other = Record(RecordKind.SPLICE, BASE, 5, PATCH, PLAIN, OTHER_JUMP)
    window = Record(RecordKind.WINDOW, BASE, 5, 0, JUMP, OTHER_JUMP)
    for found in (JUMP, INT3 + JUMP[1:], INT3 + OTHER_JUMP[1:], OTHER_JUMP):
        assert restored(plain_memory, found, SPLICE, other, window) == (PLAIN, ())


def test_a_debuggers_breakpoint_is_not_ours(plain_memory):
    """Without a record of a change that was under way, an int3 at a site is somebody else's: it stays, our bytes go."""
    for found in (INT3 + JUMP[1:], INT3 + PLAIN[1:]):
        assert restored(plain_memory, found, SPLICE) == (INT3 + PLAIN[1:], ())
