"""Go: instructions make room for one jump together only where no goroutine can be parked between them."""

from anyprobe.core.refusal import Reason
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import AUTO, Strategy, Want, WantKind
from support.planning import planner_for

BASE = 0x401000


class Parking:
    """Goroutines may be parked at some offsets."""

    def __init__(self, *places):
        self.places = places

    def may_park(self, address):
        return address - BASE in self.places


def planner_of(code_map, code, parked, *, more="", **settings):
    content = bytes.fromhex(code) + bytes.fromhex(more)
    bounds = [(0, len(bytes.fromhex(code)))]
    if more:
        bounds.append((bounds[0][1], len(content)))
    made = code_map(BASE, content, bounds)
    settings.setdefault("allowed", frozenset({Strategy.JUMP}))
    parking = None if parked is None else Parking(*parked)
    return planner_for(made, Claims(), lambda _: False, plain_jumps_only=True, parking=parking, **settings)


def planned(code_map, code, parked, at=0, kind=WantKind.OFFSET, **settings):
    planner = planner_of(code_map, code, parked, **settings)
    return planner.plan(planner.context.code.function_at(BASE), [Want(BASE + at, kind)])


def shape(plan):
    return [(s.strategy, s.head - BASE, len(s.insns), s.written) for s in plan.splices]


FRAME = "55  48 89 e5  9c  c3"  # push rbp; mov rbp, rsp; pushf; ret
CHECK = "49 3b 66 18  76 02  90 c3  c3"  # cmp rsp, [r14+0x18]; jbe 8; nop; ret; 8: ret


def test_together_where_nobody_is_parked(code_map):
    assert shape(planned(code_map, FRAME, ())) == [(Strategy.JUMP, 0, 3, 5)]
    assert shape(planned(code_map, CHECK, ())) == [(Strategy.JUMP, 0, 2, 5)]


def test_not_where_somebody_may_be_parked_in_between_or_nothing_is_known(code_map):
    for parked in ((1,), (4,), None):
        plan = planned(code_map, FRAME, parked)
        assert [why.reason for _, why in plan.refused] == [Reason.CONTROL_FLOW_UNKNOWN]
        assert not plan.splices


def test_who_is_parked_in_front_of_the_head_or_behind_what_is_written_is_not_met(code_map):
    assert shape(planned(code_map, FRAME, (0, 5))) == [(Strategy.JUMP, 0, 3, 5)]


def test_an_exit_is_reached_by_a_long_instruction_in_front_of_it(code_map):
    """``mov rbp, [rsp+0x40]; add rsp, 0x48; ret``: only the first is overwritten, so goroutines may wait behind it."""
    plan = planned(code_map, "48 8b 6c 24 40  48 83 c4 48  c3", (5, 9), 9, WantKind.EXIT)
    assert shape(plan) == [(Strategy.JUMP, 0, 3, 5)]


def test_calls_move_alone(code_map):
    """Older runtimes come back to the call of ``deferreturn`` itself: nothing in front takes it along."""
    plan = planned(code_map, "90  e8 00 01 00 00  c3", (), 0)
    assert [why.reason for _, why in plan.refused] == [Reason.CONTROL_FLOW_UNKNOWN]
    assert shape(planned(code_map, "90  e8 00 01 00 00  c3", (), 1)) == [(Strategy.JUMP, 1, 1, 5)]


def test_no_springboard_where_somebody_may_be_parked(code_map):
    """The long instruction runs as a copy with those behind it, but only bytes in front of the parked one are free."""
    # mov rbp, [rsp+0x40]; add rsp, 0x48; add rax, rbx; mov rcx, rdx; 15: nop; je 15; ret
    code = "48 8b 6c 24 40  48 83 c4 48  48 01 d8  48 89 d1  90  74 fd  c3"
    both = frozenset({Strategy.JUMP, Strategy.SHORT})
    for parked, hosted in (((), True), ((5, 9, 12), False)):
        planner = planner_of(code_map, code, parked, allowed=both, more="31 c0 c3")
        wants = [Want(BASE + at, WantKind.OFFSET) for at in (0, 9, 15)]
        plan = planner.plan(planner.context.code.function_at(BASE), wants)
        guests = [splice for splice in plan.splices if splice.dead_springboard]
        assert bool(guests) is hosted, shape(plan)


def test_ways_to_an_exit_are_spliced_where_the_tables_are_known(code_map):
    # test eax, eax; je 14; mov eax, 1; ret; 14: ret
    code = "85 c0  0f 84 06 00 00 00  b8 01 00 00 00 c3  c3"
    for parked, served in (((), True), (None, False)):
        strategies = AUTO - {Strategy.SHORT}
        plan = planned(code_map, code, parked, 14, WantKind.EXIT, allowed=strategies, more="90 90 90 90 c3")
        assert bool(plan.splices) is served
        assert [splice.strategy for splice in plan.splices] == ([Strategy.RETARGET] if served else [])
