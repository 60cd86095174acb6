"""Springboards in the bytes of displaced instructions. The assembly stands beside the bytes."""

from dataclasses import replace

import pytest

from anyprobe.core.refusal import Reason
from anyprobe.splice.codegen.emit import dead_springboard_bytes, head_bytes
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.site import Site
from anyprobe.splice.plan.splices import Strategy, Want, WantKind
from anyprobe.splice.plan.strategies.eviction import Nesting
from support.planning import claimed_plan, planner_for

BASE = 0x401000
MOV = "b8 01 00 00 00"  # mov eax, 1
LONG = "48 c7 05 00 10 00 00 07 00 00 00"  # mov qword ptr [rip+0x1000], 7: eleven bytes
HEAD = "b8 01 00 00 00  74 09  b8 01 00 00 00"  # mov eax, 1; je out; mov eax, 1
TAIL = "ff c8  75 fc  c3"  # again: dec eax; jne again; out: ret
CODE, SITE = HEAD + TAIL, 12
NEXT = MOV + "c3"
"""The function behind, close by."""


@pytest.fixture
def planner_of(code_map):
    def make(*functions, base=BASE, forbidden=(), entries=(), reachable=lambda pun: False, **settings):
        content, bounds = b"", []
        for function in functions:
            bounds.append((len(content), len(content) + len(bytes.fromhex(function))))
            content += bytes.fromhex(function)
        module = code_map(base, content, bounds, forbidden=forbidden, entries=entries)
        return planner_for(module, Claims(), reachable, **settings)

    return make


def plan_of(planner, *offsets, kind=WantKind.OFFSET, base=BASE):
    return claimed_plan(planner, planner.context.code.function_at(base), [Want(base + at, kind) for at in offsets])


def at(plan, address):
    return next(splice for splice in plan.splices if splice.head == address)


def test_a_line_is_evicted_for_a_short_jump(planner_of):
    planner = planner_of(CODE, NEXT)
    plan = plan_of(planner, SITE)
    guest, host = at(plan, BASE + SITE), at(plan, BASE)
    assert (guest.strategy, guest.written, guest.dead_springboard) == (Strategy.SHORT, 2, BASE + 5)
    assert (host.strategy, len(host.insns), host.wants, host.hosts_until) == (Strategy.JUMP, 3, (), BASE + 10)
    assert guest.leans_on == (host,)
    assert plan.splices == (host, guest), "what others lean on comes first"
    assert head_bytes(guest, 0, 0x500000) == bytes.fromhex("eb f7")  # jmp 0x401005
    assert dead_springboard_bytes(guest, 0, 0x500000) == bytes.fromhex("e9 f6 ef 0f 00")  # jmp 0x500000
    assert planner.context.claims.written == {*range(BASE, BASE + 10), BASE + 12, BASE + 13}


def test_what_is_displaced_anyway_is_used_first(planner_of):
    planner = planner_of(CODE, NEXT)
    plan = plan_of(planner, 0, 5, 7, SITE)
    host = at(plan, BASE)
    assert at(plan, BASE + SITE).leans_on == (host,)
    assert [want.address - BASE for want in host.wants] == [0, 5, 7]
    assert plan.refused == ()


def test_one_instruction_of_ten_bytes_is_enough_without_knowing_the_control_flow(planner_of):
    # mov qword ptr [rip+0x1000], 7; dec eax; jmp rax: the jump may lead anywhere
    unknown = "48 c7 05 00 10 00 00 07 00 00 00  ff c8  ff e0"
    planner = planner_of(unknown, NEXT)
    assert planner.context.code.function_at(BASE).complete is not None
    plan = plan_of(planner, 11)
    assert at(plan, BASE + 11).dead_springboard == BASE + 5
    assert len(at(plan, BASE).insns) == 1
    assert plan_of(planner_of(unknown, NEXT, plain_jumps_only=True), 11).refused == ()
    several = planner_of(MOV + MOV + "ff c8  ff e0", NEXT)
    assert plan_of(several, 10).splices == ()


def test_a_released_plan_gives_everything_back(planner_of):
    planner = planner_of(CODE, NEXT)
    for splice in plan_of(planner, SITE).splices:
        planner.context.claims.release(splice)
    assert planner.context.claims == Claims()
    assert len(plan_of(planner, SITE).splices) == 2


@pytest.mark.parametrize(("between", "reached"), [(20, True), (21, False)])
def test_the_springboard_lies_within_reach(planner_of, between, reached):
    """Straight lines of six bytes each lie between the host and the site."""
    # mov eax, 1; mov eax, 1; (inc eax; mov al, 1; je to the inc) ...; again: dec eax; jne again; ret, stored somewhere
    site = 10 + 6 * between
    planner = planner_of(MOV + MOV + "ff c0  b0 01  74 fa" * between + TAIL, NEXT, entries=[site + 4])
    plan = plan_of(planner, site)
    assert [splice.dead_springboard - BASE for splice in plan.splices if splice.dead_springboard] == [5] * reached


def test_all_lies_on_one_page(planner_of):
    base = 0x402000 - SITE  # the line without room begins with the next page
    planner = planner_of(CODE, NEXT, base=base)
    assert plan_of(planner, SITE, base=base).splices == ()


def test_lines_with_system_calls_stay(planner_of):
    # mov eax, 1; syscall; je out; mov eax, 1: threads sleep there
    planner = planner_of(MOV + "0f 05  74 06" + "31 c0" + TAIL, NEXT)
    assert plan_of(planner, 11).splices == ()


def test_what_must_stay_is_not_evicted(planner_of):
    planner = planner_of(CODE, NEXT, forbidden=[(5, 6, Reason.RSEQ.value)])
    assert plan_of(planner, SITE).splices == ()


def test_lines_without_calls_are_preferred(planner_of):
    # mov eax, 1; call; and then as ever
    planner = planner_of(MOV + "e8 00 10 00 00" + CODE, NEXT)
    assert [splice.head - BASE for splice in plan_of(planner, 10 + SITE).splices] == [10, 10 + SITE]


def test_no_patch_comes_back_in_front_of_a_springboard(planner_of):
    planner = planner_of(CODE, NEXT)
    planner.context.claims.landings.add(BASE + 5)  # a patch that displaced only the first instruction
    assert plan_of(planner, SITE).splices == ()
    planner.context.claims.landings.clear()
    planner.context.claims.landings.add(BASE + 12)
    assert len(plan_of(planner, SITE).splices) == 2


def test_a_copy_that_others_run_in_its_place_is_no_room(planner_of):
    planner = planner_of(CODE, NEXT)
    function = planner.context.code.function_at(BASE)
    plan = planner.draft(function, [Want(BASE + SITE, WantKind.OFFSET)])
    plan.splices.pop()
    for splice in plan.splices:
        planner.context.claims.claim(splice)
    context = replace(planner.context, plan=plan)
    site = Site(context, function, function.lines.around(BASE + SITE, BASE + SITE), 0, 0, BASE + SITE)
    plan.shared.add(BASE + 5)
    assert Nesting().try_at(site).reason is Reason.NO_ROOM_NEARBY
    plan.shared.clear()
    assert Nesting().try_at(site).dead_springboard == BASE + 5


def test_every_instruction_of_a_function_with_two_lines_without_room(planner_of):
    # mov eax, 1; je out; mov eax, 1; mov eax, 1; dec eax: jne again; one: inc ecx; jne one; out: ret
    code = MOV + "74 12" + MOV + MOV + "ff c8  75 fc  ff c1  75 fc  c3"
    planner = planner_of(code, NEXT)
    function = planner.context.code.function_at(BASE)
    plan = planner.plan(function, [Want(address, WantKind.OFFSET) for address in function.addresses])
    assert plan.refused == ()
    boards = sorted(splice.dead_springboard - BASE for splice in plan.splices if splice.dead_springboard)
    assert boards == [5, 10]
    assert at(plan, BASE).hosts_until == BASE + 15
