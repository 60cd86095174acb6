"""The ladder of strategies on functions of a few bytes; the assembly stands beside them."""

import pytest

from anyprobe.core.refusal import Reason
from anyprobe.isa.decode import decode_range
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import AUTO, PlannedSplice, Pun, Strategy, Want, WantKind
from support.planning import claimed_plan, planner_for

BASE = 0x401000
MOV = "b8 01 00 00 00"  # mov eax, 1
XOR = "31 c0"  # xor eax, eax
RET = "c3"  # ret
NEXT = MOV + RET
"""The function behind, close by."""
LOOP = "31 c0  ff c0  39 f8  72 fa  c3"
"""xor eax, eax; again: inc eax; cmp eax, edi; jb again; ret"""


class Case:
    """One module and its planner; functions are laid out one behind the other, with padding where asked."""

    def __init__(self, code_map, *functions, base=BASE, tail="", forbidden=(), **settings):
        content, bounds, self.starts = b"", [], []
        for each in functions:
            code, _, padding = each.partition("|")
            code = bytes.fromhex(code)
            self.starts.append(base + len(content))
            bounds.append((len(content), len(content) + len(code)))
            content += code + b"\x90" * int(padding or 0)
        self.map = code_map(base, content + bytes.fromhex(tail), bounds, forbidden=forbidden)
        self.base, self.claims = base, Claims()
        self.planner = planner_for(self.map, self.claims, settings.pop("reachable", lambda pun: False), **settings)

    def plan(self, *wants, function=0):
        """Plan (offset, kind, conditional?) wants of one function."""
        start = self.starts[function]
        made = [Want(start + offset, kind, *rest) for offset, kind, *rest in wants]
        return claimed_plan(self.planner, self.map.function_at(start), made)


@pytest.fixture
def case(code_map):
    return lambda *functions, **settings: Case(code_map, *functions, **settings)


ENTRY = (0, WantKind.ENTRY)


def not_over_the_next(pun):
    """Leave the next function's entry where it is; it could be led by a springboard that suits the jump in front."""
    return not pun.tail


def exit_at(offset, conditional=False):
    return (offset, WantKind.EXIT, conditional)


def shape(plan, base=BASE):
    """Return (strategy, offset, number of displaced instructions, offset and number of bytes written)."""
    return [(str(s.strategy), s.head - base, len(s.insns), s.write_at - base, s.written) for s in plan.splices]


def reasons(plan):
    return [refusal.reason for _, refusal in plan.refused]


# -- jumps


def test_one_instruction_of_five_bytes(case):
    one = case(NEXT)
    plan = one.plan(ENTRY)
    assert shape(plan) == [("jump", 0, 1, 0, 5)]
    assert plan.refused == ()
    assert one.claims.written == set(range(BASE, BASE + 5))
    assert [verdict for _, _, verdict in plan.verdicts][-1] is None


def test_several_instructions(case):
    # push rbp; mov rbp, rsp; pop rbp; ret
    plan = case("55 48 89 e5 5d c3").plan(ENTRY)
    assert shape(plan) == [("jump", 0, 3, 0, 5)]


def test_several_instructions_in_go(case):
    plan = case("55 48 89 e5 5d c3", plain_jumps_only=True).plan(ENTRY)
    assert reasons(plan) == [Reason.CONTROL_FLOW_UNKNOWN]
    assert shape(case(NEXT, plain_jumps_only=True).plan(ENTRY)) == [("jump", 0, 1, 0, 5)]


def test_a_jump_target_among_the_overwritten_bytes(case):
    plan = case(LOOP, NEXT).plan(ENTRY)
    assert reasons(plan) == [Reason.JUMP_TARGET_IN_JTPR]
    assert plan.splices == ()


def test_a_jump_target_among_the_overwritten_bytes_is_left_alone_by_a_pun(case):
    loop = case(LOOP, NEXT, reachable=lambda pun: True)
    (splice,) = loop.plan(ENTRY).splices
    assert splice.strategy is Strategy.PUNNED
    assert (splice.written, splice.borrowed) == (2, 3)
    assert set(loop.claims.borrowed) == set(range(BASE + 2, BASE + 5))
    # e9 ?? ff c0 39: the displacement's upper bytes are those of inc and cmp
    assert splice.pun == Pun(0, 1, BASE + 5 + 0x39C0FF00)


def test_a_pun_tries_prefixes_until_a_page_is_in_reach(case):
    longer = "48 31 c0  ff c0  39 f8  72 fa  c3"  # xor rax, rax; again: inc eax; cmp eax, edi; jb again; ret
    tried = []

    def reachable(pun):
        tried.append(pun.prefixes)
        return pun.prefixes == 1

    (splice,) = case(longer, NEXT, reachable=reachable).plan(ENTRY).splices
    assert tried == [0, 1]
    assert splice.pun.head_bytes(splice.pun.base + 0x12) == b"\x36\xe9\x12"
    assert (splice.written, splice.borrowed) == (3, 3)


def test_the_entry_is_behind_endbr64(case):
    marked = case("f3 0f 1e fa" + NEXT)
    function = marked.map.function_at(BASE)
    plan = marked.planner.plan(function, [Want(function.entry, WantKind.ENTRY)])
    assert shape(plan) == [("jump", 4, 1, 4, 5)]


def test_padding_behind_the_function_is_overwritten(case):
    padded = case(XOR + RET + "|5", NEXT)
    assert shape(padded.plan(ENTRY)) == [("jump", 0, 2, 0, 5)]
    assert reasons(case(XOR + RET + "|1", NEXT).plan(ENTRY)) == [Reason.JUMP_TARGET_IN_JTPR]


def test_bytes_across_a_page_boundary(case):
    crossing = case(NEXT, base=0x401FFD)
    plan = crossing.plan(ENTRY)
    assert reasons(plan) == [Reason.PAGE_BOUNDARY]
    assert crossing.claims.written == set()
    assert plan.refused[0][1].address == 0x401FFD


def test_code_that_must_not_be_displaced(case):
    plan = case(NEXT, forbidden=[(4, 6, Reason.RSEQ.value)]).plan(ENTRY)
    assert reasons(plan) == [Reason.RSEQ]
    assert shape(case(NEXT, forbidden=[(5, 6, Reason.RSEQ.value)]).plan(ENTRY)) == [("jump", 0, 1, 0, 5)]


def test_a_lone_return(case):
    assert reasons(case(RET, NEXT).plan(ENTRY)) == [Reason.LONE_RET]
    assert shape(case(RET + "|4", NEXT).plan(ENTRY)) == [("jump", 0, 1, 0, 5)]


def test_an_instruction_that_is_entered_behind_its_prefix_too(case):
    # cmp dword ptr [rdi], 0; je 6; lock inc dword ptr [rsi]; ret
    plan = case("83 3f 00  74 01  f0 ff 06  c3").plan((5, WantKind.OFFSET))
    ((_, refusal),) = plan.refused
    assert refusal.reason is Reason.JUMP_TARGET_IN_JTPR
    assert "after its lock prefix" in refusal.detail


def test_no_boundary_and_no_function(case):
    one = case(NEXT + "|10", NEXT)
    plan = one.plan((2, WantKind.OFFSET), (12, WantKind.OFFSET))
    assert reasons(plan) == [Reason.NOT_A_BOUNDARY, Reason.NOT_CODE]


def test_strategies_that_were_not_asked_for(case):
    plan = case(NEXT, allowed=frozenset({Strategy.RETARGET})).plan(ENTRY)
    assert reasons(plan) == [Reason.STRATEGY_NOT_ASKED]
    assert {strategy for _, strategy, _ in plan.verdicts} == {Strategy.RETARGET}


def test_an_offset_is_covered_by_a_jump_in_front(case):
    # xor eax, eax; mov eax, edi; inc edi; ret: the ret has no room behind it
    plan = case("31 c0  89 f8  ff c7  c3", NEXT).plan((6, WantKind.OFFSET))
    assert shape(plan) == [("jump", 2, 3, 2, 5)]


# -- one patch for several wants


def test_entry_and_exit_of_a_short_function_share_a_jump(case):
    (splice,) = case(XOR + RET + "|13", NEXT).plan(ENTRY, exit_at(2)).splices
    assert [want.kind for want in splice.wants] == [WantKind.ENTRY, WantKind.EXIT]
    assert BASE + 2 in [insn.address for insn in splice.insns]


def test_the_patch_of_a_pun_grows_over_the_exit(case):
    grown = case(XOR + RET, NEXT, reachable=not_over_the_next)
    plan = grown.plan(ENTRY, exit_at(2))
    (splice,) = plan.splices
    assert splice.strategy is Strategy.PUNNED
    assert [insn.text for insn in splice.insns] == ["xor eax, eax", "ret"]
    assert (splice.written, splice.borrowed) == (2, 3)
    assert len(splice.wants) == 2
    assert plan.refused == ()


# -- branches


def test_tail_jumps_are_retargeted(case):
    # test edi, edi; je other; jmp other
    plan = case("85 ff  0f 84 05 00 00 00  e9 00 00 00 00", NEXT).plan(exit_at(2, True), exit_at(8))
    assert shape(plan) == [("retarget", 2, 1, 4, 4), ("retarget", 8, 1, 9, 4)]


def test_a_conditional_branch_is_not_retargeted_for_what_is_not_its_taken_edge(case):
    plan = case("85 ff  0f 84 05 00 00 00  e9 00 00 00 00", NEXT).plan((2, WantKind.OFFSET))
    assert shape(plan) == [("jump", 2, 1, 2, 5)]


def test_a_retargeted_branch_is_absorbed_by_the_jump_that_needs_its_room(case):
    # je other; ret
    absorbed = case("0f 84 01 00 00 00  c3", NEXT)
    plan = absorbed.plan(exit_at(0, True), exit_at(6))
    (splice,) = plan.splices
    assert shape(plan) == [("jump", 0, 2, 0, 5)]
    assert [want.address - BASE for want in splice.wants] == [0, 6]
    assert absorbed.claims.written == set(range(BASE, BASE + 5))


def test_what_cannot_be_absorbed_stays_retargeted(case):
    # je other; ret, of which the ret must never be displaced
    kept = case("0f 84 01 00 00 00  c3", NEXT, forbidden=[(6, 7, Reason.RSEQ.value)])
    plan = kept.plan(exit_at(0, True), exit_at(6))
    assert shape(plan) == [("retarget", 0, 1, 2, 4)]
    assert [want.address - BASE for want, _ in plan.refused] == [6]
    assert kept.claims.written == set(range(BASE + 2, BASE + 6))


# -- loops back to the entry


def test_a_long_branch_back_is_retargeted(case):
    # mov eax, 1; test eax, eax; jne entry; ret
    plan = case(MOV + "85 c0  0f 85 f3 ff ff ff  c3").plan(ENTRY)
    assert shape(plan) == [("jump", 0, 1, 0, 5), ("retarget", 7, 1, 9, 4)]
    assert [want.kind for want in plan.splices[1].wants] == [WantKind.LOOP]


def test_a_short_branch_back_is_displaced(case):
    # mov eax, 1; sub edi, 1; jne entry; ret
    plan = case(MOV + "83 ef 01  75 f6  c3", NEXT).plan(ENTRY)
    assert shape(plan) == [("jump", 0, 1, 0, 5), ("jump", 5, 2, 5, 5)]


def test_a_branch_back_that_cannot_be_spliced_refuses_the_entry(case):
    # mov eax, 1; loop: jne entry; jmp loop
    stuck = case(MOV + "75 f9  eb fc", NEXT)
    plan = stuck.plan(ENTRY)
    assert reasons(plan) == [Reason.ENTRY_IS_LOOP_HEAD]
    assert plan.splices == ()
    assert stuck.claims.written == set()


def return_point(offset):
    return (offset, WantKind.RETURN_POINT)


def test_branches_to_a_return_point_go_past_it_or_refuse_it(case):
    # test edi, edi; je after; call next; after: mov eax, 1; ret
    joined = case("85 ff  0f 84 05 00 00 00  e8 06 00 00 00 " + MOV + "c3", NEXT)
    plan = joined.plan(return_point(13))
    assert shape(plan) == [("retarget", 2, 1, 4, 4), ("jump", 13, 1, 13, 5)]
    assert [want.kind for splice in plan.splices for want in splice.wants] == [WantKind.LOOP, WantKind.RETURN_POINT]
    # call next; after: mov eax, 1; loop: jne after; jmp loop
    stuck = case("e8 09 00 00 00 " + MOV + "75 f9  eb fc", NEXT)
    plan = stuck.plan(return_point(5))
    assert reasons(plan) == [Reason.RETURN_POINT_JOINED]
    assert plan.splices == ()
    assert stuck.claims.written == set()


def test_a_call_at_a_return_point_is_not_retargeted(case):
    # call next; after: call next; ret
    plan = case("e8 06 00 00 00  e8 01 00 00 00  c3", NEXT).plan(return_point(5))
    assert shape(plan) == [("jump", 5, 1, 5, 5)]


def test_loops_do_not_matter_without_an_entry(case):
    plan = case(MOV + "85 c0  0f 85 f3 ff ff ff  c3|5").plan(exit_at(13))
    assert [want.kind for splice in plan.splices for want in splice.wants] == [WantKind.EXIT]


def test_a_refused_entry_leaves_no_loop_behind(case):
    # xor eax, eax; again: inc eax; jb again; test eax, eax; jne entry; ret
    allowed = AUTO - {Strategy.SHORT}
    plan = case("31 c0  ff c0  72 fc  85 c0  0f 85 f2 ff ff ff  c3", NEXT, allowed=allowed).plan(ENTRY, exit_at(14))
    assert Reason.JUMP_TARGET_IN_JTPR in reasons(plan)
    assert all(want.kind is not WantKind.LOOP for splice in plan.splices for want in splice.wants)


def test_a_jump_table_back_to_the_entry_refuses_it(case):
    # entry: cmp edi, 1; ja out; mov edi, edi; lea rdx, [table]; movsxd rax, [rdx+rdi*4]; add rax, rdx; jmp rax
    # out: ret; table: entry - table, out - table
    code = "83 ff 01  77 12  89 ff  48 8d 15 0a 00 00 00  48 63 04 ba  48 01 d0  ff e0  c3"
    switch = case(code, tail="e8 ff ff ff  ff ff ff ff")
    function = switch.map.function_at(BASE)
    assert function.complete is None
    assert function.back_to_entry
    plan = switch.plan(ENTRY)
    assert reasons(plan) == [Reason.ENTRY_IS_LOOP_HEAD]
    assert plan.splices == ()


# -- other splices nearby


def test_the_bytes_that_a_pun_borrows_stay(case):
    near = case(XOR + RET, NEXT, reachable=not_over_the_next)
    assert [s.strategy for s in near.plan(ENTRY).splices] == [Strategy.PUNNED]
    assert Reason.BORROWED_BYTES in reasons(near.plan(ENTRY, function=1))


def test_a_pun_borrows_no_written_bytes(case):
    near = case(XOR + RET, NEXT, reachable=not_over_the_next)
    assert near.plan(ENTRY, function=1).refused == ()
    plan = near.plan(ENTRY)
    assert plan.splices == ()
    assert Reason.OVERLAP in [verdict.reason for _, _, verdict in plan.verdicts if verdict is not None]


def test_a_site_is_spliced_once(case):
    one = case(NEXT)
    one.plan(ENTRY)
    assert reasons(one.plan(ENTRY)) == [Reason.OVERLAP]


@pytest.mark.parametrize("strategy", [Strategy.JUMP, Strategy.PUNNED, Strategy.SHORT])
def test_released_bytes_can_be_claimed_again(case, strategy):
    code = NEXT if strategy is Strategy.JUMP else LOOP
    one = case(code + "|5", NEXT, reachable=lambda pun: True, allowed=frozenset({strategy}))
    (splice,) = one.plan(ENTRY).splices
    assert splice.strategy is strategy
    assert one.claims.written
    one.claims.release(splice)
    assert one.claims == Claims()
    assert len(one.plan(ENTRY).splices) == 1


# -- short jumps


def test_a_short_jump_leads_to_dead_bytes(case):
    short = case(LOOP + "|7", NEXT)
    (splice,) = short.plan(ENTRY).splices
    assert (splice.strategy, splice.written, splice.dead_springboard) == (Strategy.SHORT, 2, BASE + 11)
    assert short.claims.written == {BASE, BASE + 1, *range(BASE + 11, BASE + 16)}


@pytest.mark.parametrize(("padding", "places"), [(5, []), (6, [BASE + 2]), (9, [BASE + 5])])
def test_a_short_jump_that_ends_in_dead_bytes_leaves_these_to_itself(case, padding, places):
    """A lone ``ret`` takes the first byte of the padding, which its springboard cannot have then."""
    plan = case(f"{RET}|{padding}", NEXT, allowed=frozenset({Strategy.SHORT})).plan((0, WantKind.EXIT))
    assert [splice.dead_springboard for splice in plan.splices] == places


def test_dead_bytes_serve_one_short_jump(case):
    short = case(LOOP + "|5", LOOP, NEXT)
    assert len(short.plan(ENTRY).splices) == 1
    plan = short.plan(ENTRY, function=1)
    assert plan.splices == ()
    assert Reason.NO_ROOM_NEARBY in [verdict.reason for _, _, verdict in plan.verdicts if verdict is not None]


@pytest.mark.parametrize(("between", "reached"), [(100, True), (130, False)])
def test_dead_bytes_must_be_within_reach(case, between, reached):
    filler = "b8 01 00 00 00" * (between // 5) + "c3|5"
    plan = case(LOOP, filler, NEXT).plan(ENTRY)
    assert bool(plan.splices) == reached


def test_dead_bytes_in_the_function_itself(case):
    # xor eax, eax; again: inc eax; cmp eax, edi; jb again; jmp out; nops; out: ret
    code = "31 c0  ff c0  39 f8  72 fa  eb 06" + "90" * 6 + "c3"
    (splice,) = case(code, NEXT).plan((0, WantKind.OFFSET)).splices
    assert (splice.strategy, splice.dead_springboard) == (Strategy.SHORT, BASE + 11)


def test_dead_bytes_that_are_wanted_or_entered_are_not_used(case):
    wanted = case("31 c0  ff c0  39 f8  72 fa  eb 06" + "90" * 6 + "c3", NEXT)
    plan = wanted.plan((0, WantKind.OFFSET), (12, WantKind.OFFSET))
    assert all(splice.dead_springboard == 0 for splice in plan.splices)
    # jne leads among the nops
    entered = case("31 c0  ff c0  39 f8  75 04  eb 06" + "90" * 6 + "c3", NEXT)
    assert all(splice.dead_springboard == 0 for splice in entered.plan((0, WantKind.OFFSET)).splices)


# -- claims


def test_conflicts_say_why():
    claims = Claims()
    nop, other = decode_range(b"\x90", 10), decode_range(b"\x90", 19)
    claims.claim(PlannedSplice(Strategy.RETARGET, 10, tuple(nop), [], written=1, write_at=10))
    claims.claim(PlannedSplice(Strategy.PUNNED, 19, tuple(other), [], written=1, write_at=19, borrowed=1))
    assert claims.conflict(11, 5, 3) is None
    assert claims.conflict(6, 5, 0).reason is Reason.OVERLAP
    assert claims.conflict(20, 5, 0).reason is Reason.BORROWED_BYTES
    assert claims.conflict(7, 2, 3).reason is Reason.OVERLAP
    assert claims.conflict(17, 2, 0) is None
    assert claims.conflict(16, 2, 3).reason is Reason.OVERLAP


def test_what_has_no_displaced_form_is_refused_by_name_and_the_rest_is_had(case):
    """mov eax, 1; iretq; mov eax, 1; ret: no patch runs over the iretq, whoever wants it or its neighbours."""
    one = case(f"{MOV} 48 cf {MOV} {RET}")
    plan = one.plan(*((offset, WantKind.OFFSET) for offset in (0, 5, 7)))
    assert shape(plan) == [("jump", 0, 1, 0, 5), ("jump", 7, 1, 7, 5)]
    assert [(want.address - BASE, why.reason) for want, why in plan.refused] == [(5, Reason.NO_DISPLACED_FORM)]


def test_no_jump_uses_what_a_signal_handler_may_go_on_with(case):
    """ud2; nop * 3; mov eax, 1; ret: a handler of SIGILL adds two to the pc."""
    assert reasons(case(f"0f 0b 90 90 90 {MOV} {RET}").plan((0, WantKind.OFFSET))) != []
    assert shape(case(f"eb 03 90 90 90 {MOV} {RET}").plan((0, WantKind.OFFSET))) == [("jump", 0, 1, 0, 5)]


# -- programs that handle faults


@pytest.mark.parametrize(
    ("code", "jumps"),
    [
        ("48 8b 87 00 01 00 00 48 89 f3 c3", True),  # mov rax, [rdi + 0x100]: its address is the site
        ("48 8b 07 48 89 f3 c3", False),  # mov rax, [rdi]: a handler may go on behind it
        ("53 48 89 f3 48 89 c2 c3", True),  # push rbx; mov rbx, rsi; mov rdx, rax
        ("53 48 8b 07 48 89 f3 c3", False),  # push rbx; mov rax, [rdi]
        ("53 f7 f1 48 89 f3 c3", False),  # push rbx; div ecx
    ],
)
def test_what_may_fault_is_displaced_alone_or_not_at_all(case, code, jumps):
    assert [splice.strategy for splice in case(code).plan(ENTRY).splices] == [Strategy.JUMP]
    handled = case(code, faults_handled=True, allowed=frozenset({Strategy.JUMP})).plan(ENTRY)
    assert [splice.strategy for splice in handled.splices] == [Strategy.JUMP] * jumps
    assert (Reason.MAY_FAULT in reasons(handled)) != jumps


def test_what_serves_handlers_never_traps(case):
    """Whatever is demanded for probes."""
    one = case("53 48 89 f3 48 89 c2 c3", allowed=frozenset({Strategy.TRAP}))
    start = one.starts[0]
    view = Want(start, WantKind.ENTRY, internal=True, first=True)
    (splice,) = one.planner.plan(one.map.function_at(start), [view]).splices
    assert splice.strategy is Strategy.JUMP
    assert splice.internal
    assert case("53 48 89 f3 c3", allowed=frozenset({Strategy.TRAP})).plan(ENTRY).splices[0].strategy is Strategy.TRAP


def test_nothing_is_retargeted_unless_that_is_allowed(case):
    """However many of a function's instructions are wanted."""
    calls = "e8 fb ff ff ff  b8 01 00 00 00  e8 f1 ff ff ff  e8 ec ff ff ff  c3"
    wants = [(at, WantKind.OFFSET) for at in (0, 5, 10, 15)]
    found = {
        strategies: [
            splice.strategy for splice in case(calls, NEXT, allowed=frozenset(strategies)).plan(*wants).splices
        ]
        for strategies in ((Strategy.JUMP,), (Strategy.JUMP, Strategy.RETARGET))
    }
    assert found[(Strategy.JUMP,)] == [Strategy.JUMP] * 4
    assert sorted(found[(Strategy.JUMP, Strategy.RETARGET)]) == [Strategy.JUMP, *[Strategy.RETARGET] * 3]


@pytest.mark.parametrize("prefixes", range(14))
def test_no_jump_over_the_target_of_a_branch_whatever_its_prefixes(case, prefixes):
    """inc eax; inc ecx; inc edx; jne to the last of these, behind prefixes without a meaning."""
    code = f"ff c0  ff c1  ff c2  {'2e ' * prefixes} 75 {256 - 4 - prefixes:02x}  c3"
    plan = case(code, NEXT).plan(ENTRY)
    assert len(plan.refused) == (prefixes < 5)  # else the branch has room for a springboard
    assert not any(splice.write_at < BASE + 4 < splice.write_at + splice.written for splice in plan.splices)
