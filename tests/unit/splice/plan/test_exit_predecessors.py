"""Exits without room: the branches that lead to them are spliced instead. The assembly stands beside the bytes."""

import random
import time
from dataclasses import replace

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa import disassemble
from anyprobe.isa.decode import decode_range
from anyprobe.splice.codegen.emit import ActionSource, emit_patch, estimate
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode
from anyprobe.splice.codegen.routines import Routines
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.drafts import PlanDraft, SpliceDraft
from anyprobe.splice.plan.predecessor_edits import PredecessorEdits
from anyprobe.splice.plan.splices import AUTO, Clobbers, Strategy, Want, WantKind
from support.planning import claimed_plan, planner_for

BASE, BIAS, PATCH = 0x401000, 0x500000, 0xA00000
BANK = BankCode(slot=0x208, gate=0xA10000, near=0, routines=Routines(0xA20000, 0xA20100, 0xA20200, 0xA20300))
LEAVE = ["lea rsp, [rsp-0x80]", "push 0x1000", "call 0xa20200", "lea rsp, [rsp+0x88]"]
BLOCK = ["pop rbx", *LEAVE, "ret"]

HEAD = "53  85 ff  0f 84 0d 00 00 00  0f 85 05 00 00 00"
"""push rbx; test edi, edi; je 22; jne 20"""
MOV = "b8 01 00 00 00"  # mov eax, 1
CALL = "e8 00 10 00 00"
EXIT = "5b c3"  # 20: pop rbx; ret
BACK = "31 c0  eb fa"  # 22: xor eax, eax; jmp 20
SHAPE = [("retarget", 9, 1), ("jump", 15, 3), ("jump", 22, 2)]
AT = 21


def planner_of(code_map, code, padding=1, entries=(), more="", **settings):
    settings.setdefault("allowed", AUTO - {Strategy.SHORT})  # what is nearby would be evicted for a short jump
    content = bytes.fromhex(code)
    bounds = [(0, len(content))]
    content += b"\x90" * padding
    if more:
        bounds.append((len(content), len(content) + len(bytes.fromhex(more))))
        content += bytes.fromhex(more)
    module = code_map(BASE, content, bounds, entries=entries)
    return planner_for(module, Claims(), lambda _: False, **settings)


def plan_of(planner, *wants):
    return claimed_plan(planner, planner.context.code.function_at(BASE), [Want(BASE + at, kind) for at, kind in wants])


def shape(plan):
    return sorted(((str(s.strategy), s.head - BASE, len(s.insns)) for s in plan.splices), key=lambda item: item[1])


def patches_of(plan, kind=ActionKind.LEAVE):
    source = ActionSource(lambda _: (Action(kind, 0x1000, BANK),), lambda _: Clobbers())
    found = {}
    for splice in plan.splices:
        patch = emit_patch(splice, PATCH, BIAS, source, {})
        assert not isinstance(patch, Refusal)
        assert len(patch.code) <= estimate(splice)
        found[splice.head - BASE] = patch
    return found


def texts_of(patch):
    return [text for _, _, text in disassemble.format(patch.code, PATCH)]


def test_all_ways_to_the_exit_are_spliced(code_map):
    plan = plan_of(planner_of(code_map, HEAD + MOV + EXIT + BACK), (AT, WantKind.EXIT))
    assert plan.refused == ()
    assert shape(plan) == SHAPE
    patches = patches_of(plan)
    assert texts_of(patches[9]) == BLOCK
    assert texts_of(patches[15]) == ["mov eax, 0x1", *BLOCK]
    assert texts_of(patches[22]) == ["xor eax, eax", *BLOCK]


def test_threads_in_a_copy_of_the_block_go_back_to_the_block(code_map):
    plan = plan_of(planner_of(code_map, HEAD + MOV + EXIT + BACK), (AT, WantKind.EXIT))
    for patch in patches_of(plan).values():
        texts = {address: text for address, _, text in disassemble.format(patch.code, PATCH)}
        back = {old - BIAS - BASE: texts[copy] for old, copy in patch.copies}
        assert (back[20], back[21]) == ("pop rbx", "ret")


def test_the_block_itself_stays_and_nobody_may_write_there(code_map):
    planner = planner_of(code_map, HEAD + MOV + EXIT + BACK)
    plan = plan_of(planner, (AT, WantKind.EXIT))
    assert not planner.context.claims.written & {BASE + 20, BASE + 21}
    assert planner.context.claims.conflict(BASE + 20, 1, 0).reason is Reason.OVERLAP
    for splice in plan.splices:
        planner.context.claims.release(splice)
    assert (planner.context.claims.written, planner.context.claims.displaced) == (set(), set())


def test_a_short_conditional_branch_to_the_exit(code_map):
    # 0: mov eax, 1; 5: inc ecx; 7: je 20; nops; 18: jmp 22; 20: pop rbx; ret; 22: xor eax, eax; 24: jne 20; jmp 20
    code = "b8 01 00 00 00  ff c1  74 0b  90 90 90 90 90 90 90 90 90  eb 02" + EXIT + "31 c0  75 fa  eb f8"
    plan = plan_of(planner_of(code_map, code), (AT, WantKind.EXIT))
    assert shape(plan) == [("jump", 7, 4), ("jump", 24, 2)]
    first, second = (texts_of(patch) for _, patch in sorted(patches_of(plan).items()))
    assert first[0].startswith("je ")
    assert first[-len(BLOCK) :] == BLOCK
    assert second[0].startswith("jne ")
    assert second[1:] == [*BLOCK, *BLOCK]


def test_several_wants_of_one_exit_share_the_copies(code_map):
    planner = planner_of(code_map, HEAD + MOV + EXIT + BACK)
    plan = plan_of(planner, (AT, WantKind.EXIT), (AT, WantKind.EXIT))
    assert shape(plan) == SHAPE
    assert texts_of(patches_of(plan)[9]) == ["pop rbx", *LEAVE, *LEAVE, "ret"]


def refused_of(planner, *wants):
    plan = plan_of(planner, *(wants or [(AT, WantKind.EXIT)]))
    assert plan.splices == ()
    assert (planner.context.claims.written, planner.context.claims.displaced) == (set(), set())
    return [why.reason for _, why in plan.refused]


def test_no_room_for_one_way_means_none(code_map):
    assert refused_of(planner_of(code_map, HEAD + MOV + EXIT + BACK, padding=0, more="c3")) != []


def test_a_return_address_is_no_way_that_can_be_spliced(code_map):
    assert refused_of(planner_of(code_map, HEAD + CALL + EXIT + BACK)) != []


def test_a_stored_pointer_is_no_way_that_can_be_spliced(code_map):
    assert refused_of(planner_of(code_map, HEAD + MOV + EXIT + BACK, entries=(20,))) != []


def test_a_branch_from_another_function_is_no_way_that_can_be_spliced(code_map):
    # 27: jmp 20
    assert refused_of(planner_of(code_map, HEAD + MOV + EXIT + BACK, more="e9 f4 ff ff ff")) != []


def test_an_instruction_of_the_block_that_is_wanted_itself(code_map):
    planner = planner_of(code_map, HEAD + MOV + EXIT + BACK)
    plan = plan_of(planner, (20, WantKind.OFFSET), (AT, WantKind.EXIT))
    assert {want.address - BASE for want, _ in plan.refused} == {AT}


def test_strategies_that_were_not_asked_for(code_map):
    planner = planner_of(code_map, HEAD + MOV + EXIT + BACK, allowed=frozenset([Strategy.RETARGET]))
    assert refused_of(planner) != []


def test_go_code_is_left_alone(code_map):
    assert refused_of(planner_of(code_map, HEAD + MOV + EXIT + BACK, plain_jumps_only=True)) != []


def test_a_splice_may_not_write_what_another_function_runs_as_a_copy():
    claims = Claims()
    insns = tuple(decode_range(bytes.fromhex("31 c0 5b 5d 41 5c c3"), BASE))  # xor eax, eax; pops; ret
    claims.claim(SpliceDraft(Strategy.JUMP, BASE, insns, [], 5, BASE))
    assert claims.conflict(BASE + 6, 1, 0).reason is Reason.OVERLAP
    tail = SpliceDraft(Strategy.JUMP, BASE - 5, (*decode_range(bytes.fromhex(MOV), BASE - 5), *insns), [], 5, BASE - 5)
    assert claims.overwritten(tail).reason is Reason.OVERLAP


def test_the_ways_come_before_bytes_of_the_next_function(code_map):
    # test edi, edi; jne to the ret; ret: the pun of the test takes both along
    planner = planner_of(code_map, "85 ff 75 00 c3", padding=0, more=MOV + "c3")
    planner.context.reachable = lambda pun: not pun.tail  # the next function's entry stays where it is
    (splice,) = plan_of(planner, (4, WantKind.EXIT)).splices
    assert (splice.strategy, splice.head, len(splice.insns)) == (Strategy.PUNNED, BASE, 3)
    assert not any(planner.context.claims.borrowed[BASE + 5 + n] for n in range(6))


def test_bytes_of_the_next_function_are_the_last_resort(code_map):
    # xor eax, eax; ret, and the next function right behind, whose entry cannot be spliced then
    planner = planner_of(code_map, "31 c0 c3", padding=0, more=MOV + "c3")
    planner.context.reachable = lambda pun: not pun.tail  # the next function's entry stays where it is
    (splice,) = plan_of(planner, (2, WantKind.EXIT)).splices
    assert splice.strategy is Strategy.PUNNED
    assert planner.context.claims.borrowed[BASE + 3] == 1


def test_an_exit_that_may_be_data_has_no_ways(code_map):
    """lea rax, [rip+2]; ret; nop; inc eax; ret: nothing but a taken address leads to the second exit."""
    planner = planner_of(code_map, "48 8d 05 02 00 00 00  c3  90  ff c0  c3")
    plan = plan_of(planner, (7, WantKind.EXIT), (11, WantKind.EXIT))
    assert [(want.address - BASE, why.reason) for want, why in plan.refused][-1] == (11, Reason.NOT_CODE)


def test_a_splice_is_found_by_what_it_displaces_whatever_was_added_and_taken_back(code_map):
    planner = planner_of(code_map, HEAD + MOV + EXIT + BACK)
    plan = PlanDraft()
    ways = PredecessorEdits(replace(planner.context, plan=plan), planner.context.code.function_at(BASE))
    insns = planner.context.code.function_at(BASE).insns
    choose = random.Random(3)
    for _ in range(300):
        first = choose.randrange(len(insns) - 1)
        free = [insn for insn in insns[first : first + 3] if ways.over(insn.address) is None]
        if free and free[0] is insns[first]:
            splice = SpliceDraft(Strategy.JUMP, free[0].address, (free[0],), [], 1, free[0].address)
            ways.add(splice, Want(free[0].address, WantKind.OFFSET))
            following = insns[first + 1]
            if choose.random() < 0.5 and ways.over(following.address) is None:
                ways.carry_on(splice, (following,))
        if choose.random() < 0.4:
            ways.undo()
        for insn in insns:
            assert ways.over(insn.address) is next((s for s in plan.splices if s.covers(insn.address)), None)
            lower = [max(s.end, s.write_at + s.written) for s in plan.splices if s.head < insn.address]
            assert ways._floor(insn.address) == max(lower, default=0)


def test_thousands_of_ways_to_one_exit_are_spliced_in_no_time(code_map):
    ways = 8000
    body = b"".join(b"\x48\x85\xff\x0f\x84" + (9 * (ways - 1 - i) + 5).to_bytes(4, "little") for i in range(ways))
    body += bytes.fromhex(MOV)
    planner = planner_of(code_map, (body + b"\x58\xc3").hex())
    began = time.process_time()
    plan = plan_of(planner, (len(body) + 1, WantKind.EXIT))
    assert time.process_time() - began < 6  # the aim is 1 s; a scan of all splices for each way takes 11 s
    assert len(plan.splices) >= ways
