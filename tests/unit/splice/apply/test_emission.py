"""Patches as they are written, and what they do in an emulator."""

from collections import Counter

import pytest

from anyprobe.core.errors import InternalError
from anyprobe.probes.providers.function.probe import exit_want
from anyprobe.probes.providers.function.reading import BankValues
from anyprobe.splice.apply.emission import MANY_FUNCTIONS, Emission, worth_moving
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook, TimingGroup
from support.simulated.program import Program
from support.simulated.session import splicing

CALLS = 6


def test_what_leads_to_a_patch_and_what_is_there(program):
    """The journal, the splice and the memory say the same of the written bytes."""
    with splicing(program) as session:
        session.count("twice")
        (splice,) = session.module.splices()
        memory = program.target.mem
        assert memory.read(splice.address, len(splice.new)) == splice.new
        assert splice.old == program.content[: len(splice.old)]
        assert splice.new[:1] == b"\xe9"
        assert splice.address + 5 + int.from_bytes(splice.new[1:5], "little", signed=True) == splice.patch.address
        assert memory.read(splice.patch.address, len(splice.patch.code)) == splice.patch.code
        area = memory.area_at(splice.patch.address).mapping
        assert (area.perms, area.path) == ("r-xs", "/memfd:anyprobe")


def test_nothing_of_anyprobe_s_is_writable_and_executable(program):
    with splicing(program) as session:
        session.count("fib", program.instructions("fib"))
        perms = Counter(m.perms for m in program.target.mappings() if "anyprobe" in m.path)
        assert not [each for each in perms if "w" in each and "x" in each]
        assert perms["r-xs"] > 0
        assert perms["r--p"] > 0, "the journal is private and read-only"


def timed_wants(session, name, *, by_returns=False):
    """Return wants that time a function's calls: by its exits, or by replaced return addresses."""
    code, group = session.code(name), TimingGroup()
    kind = ActionKind.ENTER_RETURN if by_returns else ActionKind.ENTER
    wants = [Want(code.entry, WantKind.ENTRY, tag=Hook(kind, group))]
    for each in () if by_returns else code.exits.found:
        leave = ActionKind.LEAVE if each.kind == "ret" else ActionKind.LEAVE_TAIL
        wants.append(exit_want(each, Hook(leave, group)))
    return wants, group


@pytest.mark.parametrize("by_returns", [False, True], ids=["exits", "returns"])
@pytest.mark.parametrize(("name", "calls"), [("twice", 1), ("sum_to", 1), ("collatz", 1), ("fib", 25), ("tail", 1)])
def test_calls_are_timed_from_entry_to_exit(program, name, calls, by_returns):
    result = program.call(name, CALLS)
    with splicing(program) as session:
        wants, group = timed_wants(session, name, by_returns=by_returns)
        session.engine.change([session.edit(name, wants)])
        assert [want.tag.refusal for want in wants] == [None] * len(wants)
        assert program.call(name, CALLS) == result
        values = BankValues()
        record = values.reader(group.bank).record(group.offset)
        assert (record.count + record.learning, record.missed, record.unmatched) == (calls, 0, 0)
        assert record.learning == (1 if name == "tail" and not by_returns else 0)
        assert record.tail == 0
        assert 0 <= record.min <= record.max
        assert values.in_flight(group.bank, group.offset) == 0


def test_returns_are_counted_where_the_return_address_is_replaced(program):
    with splicing(program) as session:
        hook = Hook(ActionKind.COUNT_RETURN)
        session.engine.change([session.edit("fib", [Want(session.code("fib").entry, WantKind.ENTRY, tag=hook)])])
        assert hook.refusal is None
        thread = program.target.begin(program["fib"], CALLS)
        program.target.run_to(thread, program["fib"] + 7)  # behind what makes room for the jump
        assert session.hits([hook]) == [0]
        assert program.target.finish(thread) == 8
        assert session.hits([hook]) == [25]


def test_a_call_under_way_has_its_true_return_address_back_when_all_is_removed(program):
    target = program.target
    with splicing(program) as session:
        hook = Hook(ActionKind.COUNT_RETURN)
        session.engine.change([session.edit("twice", [Want(session.code("twice").entry, WantKind.ENTRY, tag=hook)])])
        thread = target.begin(program["twice"], CALLS)
        before = target.mem.read(thread.actual.rsp, 8)
        target.run_to(thread, program["twice"] + 7)
        assert target.mem.read(thread.actual.rsp + 8, 8) != before
        removal = session.remove()
        assert not removal.kept
        assert target.mem.read(thread.actual.rsp + 8, 8) == before
        assert target.finish(thread) == 2 * CALLS


SMALL = """
    mov eax, edi
    add eax, {number}
    imul eax, eax, 3
    xor eax, edi
    ret
"""


def test_lines_of_many_functions_move_together_and_count_the_same_with_less_work(simulated):
    """From so many functions on, the counters of a line share what they need of registers and flags."""
    listings = {f"f{n}": SMALL.format(number=n) for n in range(MANY_FUNCTIONS)}
    program = Program(simulated, listings)
    expected = {name: program.call(name, CALLS) for name in ("f0", "f1", f"f{MANY_FUNCTIONS - 1}")}
    work = []
    for names in (["f0"], listings):
        with splicing(program) as session:
            wants = {name: session.wants(name, program.instructions(name)) for name in names}
            edits = session.edits(wants)
            session.engine.change(edits)
            assert worth_moving(edits) == (len(names) > 1)
            program.call("f0", CALLS)  # at the first hit of all the thread gets its block
            with simulated.machine.tracing(0, 1 << 47) as ran:
                assert program.call("f0", CALLS) == expected["f0"]
            work.append(sum(ran.values()))
            called = [name for name in names if name in expected]
            assert [program.call(name, CALLS) for name in called] == [expected[name] for name in called]
            calls = {name: session.hits(want.tag for want in each) for name, each in wants.items()}
            assert calls == {name: [(name in expected) + 2 * (name == "f0")] * 5 for name in names}
    assert work[1] < work[0]


def test_nothing_is_written_over_a_patch_that_is_compared(program):
    """What is mapped again may take its patch again: that may be live, and what would be written is only looked at."""
    with splicing(program) as session:
        (hook,) = session.count("twice")
        (home,), (splice,) = session.splicing.holdings.code_regions, session.module.splices()
        patch, cursor = splice.patch, home.cursor
        with home.looking_back(patch.address):
            assert home.cursor == patch.address
            with pytest.raises(InternalError, match="may be live"):
                home.put(b"\xcc")
        assert home.cursor == cursor
        assert program.target.mem.read(patch.address, len(patch.code)) == patch.code
        assert home.put(b"\xcc") == cursor
        assert program.call("twice", CALLS) == 2 * CALLS
        assert session.hits([hook]) == [1]


NEIGHBOURS = {
    "next": ".byte 89 f8 83 c0 01 c3",  # mov eax, edi; add eax, 1; ret
    "opposite": ".byte 89 f8 f7 d8 90 c3",
    "sign": ".byte 85 ff 74 02 89 f8 c3",  # test edi, edi; je past; mov eax, edi; past: ret
    "half": ".byte 89 f8 d1 f8 90 c3",
}
"""Functions without room of their own, which are planned together."""


@pytest.mark.parametrize("names", [["next"], ["next", "opposite"], [*NEIGHBOURS]], ids=len)
def test_patches_of_counters_are_those_that_would_be_written_for_anything_else(simulated, monkeypatch, names):
    program = Program(simulated, {name: NEIGHBOURS[name] for name in names}, alignment=1)

    def emitted():
        with splicing(program) as session:
            (edit,) = session.edits({name: session.wants(name) for name in names})
            session.engine.change([edit])
            splices = edit.state.splices
            assert len(splices) == len(names)
            assert [program.call(name, 7) for name in names] == results
            return [
                (each.address, each.old, each.new, each.whole, each.patch.address, each.patch.code, each.patch.after,
                 tuple(each.patch.starts), tuple(each.patch.copies))
                for each in splices
            ]  # fmt: skip

    monkeypatch.setattr("anyprobe.splice.apply.preparation.choose_slot", lambda *_: 0x258)  # of several, any one
    results = [program.call(name, 7) for name in names]
    simply = emitted()
    monkeypatch.setattr(Emission, "_emit_counters", lambda *_: None)
    assert emitted() == simply
