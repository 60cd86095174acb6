"""Functions that are planned together. The assembly stands beside the bytes."""

import pytest

from anyprobe.splice.edits import FunctionState, Module
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import AUTO, Strategy, Want, WantKind
from anyprobe.splice.plan.together import all_of, first_of, member_at
from support.planning import planner_for

BASE = 0x401000
MOV = "b8 01 00 00 00"  # mov eax, 1
LONG = MOV + MOV + "c3"  # mov eax, 1; mov eax, 1; ret


def modules(code_map, *functions, base=BASE, entries=()):
    content, bounds = b"", []
    for function in functions:
        code, _, padding = function.partition("|")
        code = bytes.fromhex(code)
        bounds.append((len(content), len(content) + len(code)))
        content += code + b"\x90" * int(padding or 0)
    return code_map(base, content, bounds, entries=entries), [base + start for start, _ in bounds]


def lone_ret_after_a_loop(code_map, padding=""):
    """Return a function whose ret, entered by its address, has no room, and one right behind it."""
    # mov eax, 1; mov eax, 1; je to the first; ret | mov eax, 1; mov eax, 1; ret
    code = MOV + MOV + "74 f4"
    return modules(code_map, code + "c3" + padding, LONG, entries=[12])


def test_what_ends_without_room_is_planned_with_what_follows(code_map):
    made, starts = lone_ret_after_a_loop(code_map)
    first, second = map(made.function_at, starts)
    assert first_of(made, second) is first
    assert all_of(made, first) == all_of(made, second) == (first, second)


def test_padding_between_is_room(code_map):
    made, starts = lone_ret_after_a_loop(code_map, "|1")
    for function in map(made.function_at, starts):
        assert all_of(made, function) == (function,)


def test_a_tiny_function_leans_on_its_neighbours(code_map):
    made, starts = modules(code_map, LONG, "eb f3", "eb f1", LONG)  # jmp to the first; jmp to the first
    first, *rest = map(made.function_at, starts)
    assert all_of(made, first) == (first, *rest)


def test_go_functions_are_planned_alone(code_map):
    made, starts = lone_ret_after_a_loop(code_map)
    object.__setattr__(made.text, "is_go", True)
    assert all_of(made, made.function_at(starts[0])) == (made.function_at(starts[0]),)


def test_entries_and_exits_of_both(code_map):
    made, starts = lone_ret_after_a_loop(code_map)
    first, second = map(made.function_at, starts)
    planner = planner_for(
        made, Claims(), lambda pun: bool(pun.tail) or pun.base & 0xFF == 0xFA, AUTO - {Strategy.SHORT}
    )
    ends = [Want(each.entry, WantKind.ENTRY) for each in (first, second)]
    ends += [Want(each.exits.found[-1].address, WantKind.EXIT) for each in (first, second)]
    plan = planner.plan(first, ends)
    assert plan.refused == ()
    assert plan.scope == (first, second)
    over = next(splice for splice in plan.splices if splice.head == BASE + 12)
    assert [each.head for each in over.leans_on] == [second.start]


@pytest.mark.parametrize("swapped", [False, True])
def test_states_of_functions_that_come_together_are_merged(code_map, swapped):
    made, starts = modules(code_map, LONG + "|5", LONG + "|5")
    module = Module("m", made, 0, BASE, BASE + 0x1000)
    one, other = map(made.function_at, reversed(starts) if swapped else starts)
    of_one, of_other = module.state_of(one), module.state_of(other)
    assert of_one is not of_other
    kept = Want(other.start, WantKind.OFFSET)
    of_other.wants.append(kept)
    assert module.state_of(one, [one.start + 1, other.start + 10]) is of_one
    assert module.state_of(other) is module.known_state(other) is of_other.root is of_one
    assert of_one.wants == [kept]
    assert of_other.wants == []
    of_one.merge(of_other)
    assert of_one.wants == [kept]


def test_a_state_merges_through_others(code_map):
    made, starts = modules(code_map, LONG + "|5", LONG + "|5", LONG + "|5")
    one, two, three = (FunctionState(made.function_at(start)) for start in starts)
    two.merge(three)
    one.merge(two)
    assert three.root is two.root is one


def test_whose_an_instruction_is(code_map):
    made, starts = lone_ret_after_a_loop(code_map)
    members = all_of(made, made.function_at(starts[0]))
    assert member_at(members, starts[1] + 5) is members[1]
    assert member_at(members, starts[0] + 12) is members[0]
    assert member_at(members[:1], starts[1]) is members[0]
