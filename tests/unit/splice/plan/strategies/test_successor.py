"""Instructions of one byte, spliced by means of what stands behind them. The assembly stands beside the bytes."""

import pytest

from anyprobe.core.refusal import Reason
from anyprobe.isa.decode import decode_range
from anyprobe.splice.codegen.emit import head_bytes
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import Pun, Strategy, Want, WantKind
from anyprobe.splice.plan.springboards import PunPlaces, Springboards
from anyprobe.splice.plan.strategies.chained_puns import ChainedPun
from anyprobe.splice.plan.strategies.successor import Successor, pairs
from anyprobe.splice.plan.strategies.wedge import Wedge
from anyprobe.target.system.procfs import Mapping
from support.planning import claimed_plan, first_site, planner_for

BASE = 0x401000
MOV = "b8 01 00 00 00"  # mov eax, 1
NEXT = MOV + "c3"
TABLE = "ff e0"
"""jmp rax, which may lead anywhere: each instruction is a line of its own."""
LONE = "c3" + "48 8b 05 00 10 00 00" + TABLE
"""ret; mov rax, [rip+0x1000]; jmp rax"""


@pytest.fixture
def planner_of(code_map):
    def make(*functions, base=BASE, reachable=lambda pun: True, entries=(1,), **settings):
        content, bounds = b"", []
        for function in functions:
            bounds.append((len(content), len(content) + len(bytes.fromhex(function))))
            content += bytes.fromhex(function)
        return planner_for(code_map(base, content, bounds, entries=entries), Claims(), reachable, **settings)

    return make


def plan_of(planner, *offsets, base=BASE):
    return claimed_plan(
        planner, planner.context.code.function_at(base), [Want(base + at, WantKind.OFFSET) for at in offsets]
    )


def written(plan, targets):
    """Return the bytes of a plan's splices by offset; ``targets`` are where direct jumps lead."""
    found = {}
    for splice in plan.splices:
        target = splice.pun.base if splice.pun is not None else targets
        for at, byte in enumerate(head_bytes(splice, 0, target), splice.write_at - BASE):
            assert at not in found
            found[at] = byte
    return found


def over_successor(planner):
    """Return the splice of a function's first instruction, over the second one."""
    return Successor().try_at(first_site(planner.context, BASE))


def only_over_successor(pun):
    """Refuse what the bytes of the file spell; whatever is chosen may be mapped."""
    return pun.free > 0 or bool(pun.tail) or pun.base & 0xFF == 0xEE


def test_two_jumps_whose_bytes_overlap(planner_of):
    plan = plan_of(planner_of(LONE, NEXT, reachable=only_over_successor), 0)
    after, site = plan.splices
    assert (after.head - BASE, after.strategy, after.wants, after.written) == (1, Strategy.PUNNED, (), 5)
    assert (site.head - BASE, site.strategy, site.written, site.borrowed) == (0, Strategy.PUNNED, 1, 4)
    assert site.leans_on == (after,)
    content = bytes(byte for _, byte in sorted(written(plan, 0).items()))
    assert content[:2] == b"\xe9\xe9"
    first, second = decode_range(content[:5], BASE), decode_range(content[1:6], BASE + 1)
    assert [insn.target for insn in first] == [site.pun.base]
    assert [insn.target for insn in second] == [after.pun.base]


def test_the_jump_of_the_instruction_behind_is_led_by_a_springboard_for_that(planner_of):
    planner = planner_of(LONE, NEXT, reachable=only_over_successor)
    plan = plan_of(planner, 1, 0)
    after = next(splice for splice in plan.splices if splice.head == BASE + 1)
    assert [want.address for want in after.wants] == [BASE + 1]
    assert plan.refused == ()
    for splice in plan.splices:
        planner.context.claims.release(splice)
    assert planner.context.claims == Claims()


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_displacements_of_all_lengths(planner_of, length):
    code = {1: "c3", 2: "31 c0", 3: "48 31 c0", 4: "48 83 c0 01"}[length]  # ret; xor; xor; add rax, 1
    planner = planner_of(code + "48 8b 05 00 10 00 00" + TABLE, NEXT, entries=[length])
    splice = over_successor(planner)
    (after,) = splice.leans_on
    first = head_bytes(splice, 0, splice.pun.base + (5 if length > 1 else 0)) + head_bytes(after, 0, after.pun.base)
    assert len(first) == length + 5
    assert decode_range(first[:5], BASE)[0].target == (splice.pun.base + (5 if length > 1 else 0)) % 2**64
    assert decode_range(first[length:], BASE + length)[0].target == after.pun.base


def test_a_prefix_where_the_jump_would_lead_below_everything(planner_of):
    """Of four bytes only the last of the displacement is another's: e9 is far below, 36 above."""
    code = "48 83 c0 01" + "48 8b 05 00 10 00 00" + TABLE
    splice = over_successor(planner_of(code, NEXT, reachable=lambda pun: pun.base > 0, entries=[4]))
    (after,) = splice.leans_on
    assert after.pun.prefixes == 1
    assert splice.pun == Pun(0, 3, BASE + 5 + 0x36000000)
    assert head_bytes(after, 0, after.pun.base)[:2] == b"\x36\xe9"


def test_both_jumps_lie_on_one_page(planner_of):
    for base, placed in ((0x402000 - 6, True), (0x402000 - 5, False)):
        chosen = (base + 0xEE) & 0xFF
        planner = planner_of(
            LONE, NEXT, base=base, reachable=lambda p, low=chosen: bool(p.tail) or p.base & 0xFF == low
        )
        assert bool(plan_of(planner, 0, base=base).splices) == placed


def test_an_instruction_behind_that_is_shorter_than_a_jump(planner_of):
    """Of its bytes two can be chosen: one is the highest of the displacement in front."""
    # xor rax, rax; mov rax, rax; jmp rax
    planner = planner_of("48 31 c0" + "48 89 c0" + TABLE, NEXT, entries=[3])
    splice = ChainedPun().try_at(first_site(planner.context, BASE))
    (after,) = splice.leans_on
    content = head_bytes(splice, 0, splice.pun.base) + head_bytes(after, 0, after.pun.base) + bytes.fromhex(TABLE)
    assert (splice.written, after.written, len(content)) == (3, 3, 8)
    assert decode_range(content[:5], BASE)[0].target == splice.pun.base % 2**64
    assert decode_range(content[3:], BASE + 3)[0].target == after.pun.base % 2**64


def test_a_table_of_short_lines(planner_of):
    """Each line leans on the bytes of the next one, the last one on what stays; all are different jumps."""
    lines = "".join(f"b0 {n:02x} c3" for n in range(1, 9))  # mov al, n; ret
    planner = planner_of(lines + MOV + "c3", NEXT, entries=range(3, 27, 3), reachable=lambda pun: pun.base > BASE)
    plan = plan_of(planner, *range(0, 24, 3))
    assert plan.refused == ()
    content = bytearray(bytes.fromhex(lines + MOV))
    for splice in plan.splices:
        at = splice.write_at - BASE
        content[at : at + splice.written] = head_bytes(splice, 0, splice.pun.base if splice.pun else 0x500000)
    for splice in plan.splices:
        if splice.pun is not None:
            at = splice.head - BASE
            jump = decode_range(bytes(content[at : at + splice.written + splice.borrowed]), splice.head)[0]
            assert jump.target == splice.pun.base


def test_a_table_of_exits_between_heap_and_code(code_map):
    """Only far below anything can be mapped: each jump's bytes are chosen so that the line in front can use them."""
    lines = "".join("31 c0 c3" if n == 7 else f"b0 {n:02x} c3" for n in range(1, 21))  # mov al, n; ret
    content, bias = bytes.fromhex(lines + NEXT), 0x5555_5515_3000
    start = BASE + bias & -4096
    program = [
        Mapping(start, start + (1 << 16), "r-xp", 0, "", 1, "program", deleted=False),
        Mapping(start + (1 << 16), start + (1 << 17), "r-xp", 0, "", 1, "[heap]", deleted=False),
    ]
    springboards = Springboards(AddressSpace(program))
    places = PunPlaces(springboards, bias)
    entries = [0, *range(3, len(content), 3)]
    claims = Claims(places=places)
    planner = planner_for(code_map(BASE, content, [(0, len(content))], entries=entries), claims, places.reachable)
    wants = [Want(BASE + at, WantKind.EXIT) for at in range(2, 60, 3)]
    plan = planner.plan(planner.context.code.function_at(BASE), wants)
    assert plan.refused == ()
    written = bytearray(content)
    for splice in plan.splices:
        target = splice.springboard - bias if splice.springboard else 0x500000
        at = splice.write_at - BASE
        written[at : at + splice.written] = head_bytes(splice, 0, target)
    for splice in plan.splices:
        if splice.springboard:
            at = splice.head - BASE
            jump = decode_range(bytes(written[at : at + splice.written + splice.borrowed]), splice.head)[0]
            assert jump.target is not None
            assert jump.target % 2**64 == (splice.springboard - bias) % 2**64
    assert len({splice.springboard for splice in plan.splices if splice.springboard}) >= 18


def test_one_byte_with_the_byte_behind_is_a_short_jump_to_dead_bytes(planner_of):
    # ret; sbb al, 6; jmp rax: the byte behind the ret is 0x1c, and at 1 + 1 + 0x1c = 30 the function's nops have begun
    code = "c3  1c 06  ff e0"
    for nops, placed in ((0, False), (30, True)):
        planner = planner_of(code + MOV * 4 + "c3" + "90" * nops, NEXT, reachable=lambda pun: False)
        splices = plan_of(planner, 0).splices
        assert [splice.dead_springboard - BASE for splice in splices] == [30] * placed


def test_one_byte_with_the_byte_behind_is_a_short_jump_into_an_evicted_line(planner_of):
    # 0: ret; 1: sbb al, 6; 3: jmp 7; 5: nop; 6: ret; 7: (mov eax, 1) six times; 37: ret; 1 + 1 + 0x1c = 30
    code = "c3  1c 06  eb 02  90  c3" + MOV * 6 + "c3"
    planner = planner_of(code, NEXT, reachable=lambda pun: False)
    splice = Wedge().try_at(first_site(planner.context, BASE))
    assert (splice.strategy, splice.written, splice.borrowed) == (Strategy.SHORT, 1, 1)
    assert splice.dead_springboard == BASE + 30
    assert head_bytes(splice, 0, 0x500000) == b"\xeb"
    (host,) = splice.leans_on
    assert host.head + 5 <= BASE + 30 <= host.end - 5
    planner.context.adopt(splice)
    assert planner.context.claims.conflict(BASE + 1, 1, 0).reason is Reason.BORROWED_BYTES


def test_the_places_of_two_springboards_are_not_one(planner_of):
    """Where the one jump can reach only a few places, the other takes none of them."""
    for size in (1, 2, 3, 4):
        planner = planner_of(LONE, NEXT)
        for prefix in (b"", b"\x36", b"\x65"):
            for own, after in pairs(planner.context, BASE, size, prefix):
                assert after.base + 14 <= own.base or own.base + 256**own.free + 14 <= after.base


def test_in_go_single_instructions_are_spliced_over_their_successor(planner_of):
    # cmp rax, rdx; jge far: one straight line, of which nothing may move together
    planner = planner_of("48 39 d0" + "0f 8d c7 00 00 00" + "c3", NEXT, plain_jumps_only=True, entries=())
    planner.context.reachable = lambda pun: (
        bool(pun.tail) or pun.base >> 24 in (0x11, 0x10)
    )  # as chosen, not as spelled
    plan = plan_of(planner, 0)
    assert [(splice.head - BASE, len(splice.insns), splice.written) for splice in plan.splices] == [
        (3, 1, 5),
        (0, 1, 3),
    ]


def test_a_prefix_that_leads_beyond_the_heap(planner_of):
    code = "48 83 c0 01" + "48 8b 05 00 10 00 00" + TABLE
    splice = over_successor(planner_of(code, NEXT, reachable=lambda pun: pun.base > 1 << 30, entries=[4]))
    (after,) = splice.leans_on
    assert head_bytes(after, 0, after.pun.base)[:2] == b"\x65\xe9"
    assert splice.pun == Pun(0, 3, BASE + 5 + 0x65000000)
    jump = decode_range(head_bytes(after, 0, after.pun.base), after.head)
    assert [insn.target for insn in jump] == [after.pun.base]
