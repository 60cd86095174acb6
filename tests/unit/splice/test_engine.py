"""The engine from plan to removal, on a target that is memory and an emulator."""

import errno
import random
from collections import Counter

import pytest

from anyprobe.core.checkpoints import interruptible
from anyprobe.core.errors import RemoteCallFailed, SessionConflict
from anyprobe.core.refusal import Reason
from anyprobe.splice.apply import preparation
from anyprobe.splice.apply.recovery.recovery import remove
from anyprobe.splice.apply.recovery.suspension import resume, suspend
from anyprobe.splice.apply.transaction import Transaction
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.plan.entry_plans import EntryPlans
from anyprobe.splice.plan.splices import Strategy, Want, WantKind
from anyprobe.splice.regions.banks import Hook
from support.simulated.functions import FUNCTIONS
from support.simulated.program import BIAS, Program
from support.simulated.session import Splicing, splicing
from support.simulated.target import as_process

ARGUMENTS = (1, 2, 5, 11)
REPEATED = b"\xf3"
"""The emulator sees such an instruction once for each repetition."""


def run_all(program, names=FUNCTIONS):
    """Return what functions return for all arguments, and how often each instruction ran for that."""
    with program.target.machine.tracing(program.low, program.high) as seen:
        results = {(name, n): program.call(name, n) for name in names for n in ARGUMENTS}
    return results, Counter({at - BIAS: count for at, count in seen.items()})


def places_of(program, names=FUNCTIONS):
    return [insn.address for name in names for insn in program.code(name).insns if insn.raw[:1] != REPEATED]


def counted(session, hooks):
    """Return what hooks have counted, by the addresses that they are for."""
    refused = {at: str(hook.refusal) for at, hook in hooks.items() if hook.refusal is not None}
    assert not refused
    return dict(zip(hooks, session.hits(hooks.values()), strict=True))


def count_all(session, names=FUNCTIONS):
    """Count all instructions of functions in one change; return the hooks by address."""
    wants = {name: session.wants(name, places_of(session.program, [name])) for name in names}
    session.engine.change(session.edits(wants))
    return {want.address: want.tag for each in wants.values() for want in each}


class Moments:
    """Suits the third time, if nothing was refused."""

    def __init__(self, *, refused=None):
        self.refused, self.looks, self.waits, self.checks = refused, 0, 0, 0

    def check(self, edits, refusal_of):
        self.checks += 1
        assert [refusal_of(edit) for edit in edits] == [None] * len(edits)
        if self.refused is not None and self.looks == 3:
            raise self.refused

    def suits(self, stop):
        assert stop.threads is not None
        self.looks += 1
        return self.looks == 3

    def wait(self):
        self.waits += 1


def test_a_change_is_made_at_the_moment_that_suits(program):
    with splicing(program) as session:
        moments = Moments()
        with session.splicing.as_a_whole(moments):
            (hook,) = session.count("twice")
        assert (moments.looks, moments.waits, moments.checks) == (3, 2, 2)
        assert hook.armed
        session.count("twice")
        assert moments.looks == 3


def test_what_a_condition_raises_before_the_writes_leaves_all_as_it_was(program):
    with splicing(program) as session:
        moments = Moments(refused=SessionConflict("not now"))
        with session.splicing.as_a_whole(moments), pytest.raises(SessionConflict, match="not now"):
            session.count("twice")
        assert moments.looks == 3
        assert program.is_pristine()
        assert session.count("twice")[0].armed


def test_entries_are_counted_and_nothing_is_left(program):
    with splicing(program) as session:
        (hook,) = session.count("twice")
        assert hook.refusal is None
        assert not program.is_pristine()
        assert [program.call("twice", n) for n in range(5)] == [0, 2, 4, 6, 8]
        assert session.hits([hook]) == [5]
        session.take_out("twice")
        assert program.is_pristine()
        assert program.call("twice", 21) == 42
        assert session.hits([hook]) == [5]


def test_what_is_armed_is_told_of_before_the_journal_is_cleared(program, monkeypatch):
    order = []
    with splicing(program) as session:
        wants = session.wants("twice", places_of(program, ["twice"])[:1])
        hooks = [want.tag for want in wants]
        finish = Transaction.finish
        monkeypatch.setattr(Transaction, "finish", lambda self: (order.append("cleared"), finish(self)))
        with session.splicing.upkeep.telling(lambda: order.append([hook.armed for hook in hooks])):
            session.engine.change(session.edits({"twice": wants}))
            assert order == [[True], "cleared"]
            session.engine.change([])
            assert len(order) == 2
        session.take_out("twice")
        assert order == [[True], "cleared", "cleared"]


@pytest.mark.parametrize("slots", [True, False], ids=["per-thread", "shared"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_instruction_counts_as_often_as_it_runs(program, name, slots):
    results, executed = run_all(program, [name])
    with splicing(program, slots=slots) as session:
        hooks = count_all(session, [name])
        assert run_all(program, [name])[0] == results
        assert counted(session, hooks) == {at: executed[at] for at in hooks}


@pytest.mark.parametrize("alignment", [1, 16])
def test_every_instruction_of_all_functions_at_once(simulated, alignment):
    """Packed together, short functions have no room of their own: jumps lie in what others displace."""
    program = Program(simulated, FUNCTIONS, alignment=alignment)
    results, executed = run_all(program)
    with splicing(program) as session:
        hooks = count_all(session)
        refused = {at: hooks.pop(at).refusal.reason for at in list(hooks) if hooks[at].refusal is not None}
        assert refused == ({program.starts["nothing"]: Reason.LONE_RET} if alignment == 1 else {})
        assert run_all(program)[0] == results
        assert counted(session, hooks) == {at: executed[at] for at in hooks}
        leaning = [splice for splice in session.module.splices() if splice.planned.leans_on]
        assert bool(leaning) == (alignment == 1)


def test_each_instruction_alone_by_whatever_strategy(simulated):
    program = Program(simulated, FUNCTIONS, alignment=1)
    used = Counter()
    for name, following in zip(FUNCTIONS, [*FUNCTIONS][1:], strict=False):
        results, executed = run_all(program, [name, following])
        for at in places_of(program, [name]):
            with splicing(program) as session:
                (hook,) = session.count(name, [at])
                used.update(session.strategies())
                used["leaning"] += any(splice.planned.leans_on for splice in session.module.splices())
                assert run_all(program, [name, following])[0] == results
                assert counted(session, {at: hook}) == {at: executed[at]}
    assert set(used) == {"jump", "short", "punned", "retarget", "leaning"}


@pytest.mark.parametrize("name", ["twice", "sum_to", "tail", "zero"])
def test_traps_lead_to_patches(program, name):
    """The emulator raises the signal, the handler in the target finds the patch."""
    results, executed = run_all(program, [name])
    with splicing(program, allowed=frozenset([Strategy.TRAP])) as session:
        hooks = count_all(session, [name])
        assert session.strategies() == {"trap"}
        assert simulated_actions(program) == {5}
        assert run_all(program, [name])[0] == results
        assert counted(session, hooks) == {at: executed[at] for at in hooks}
    assert simulated_actions(program) == set()


def simulated_actions(program):
    """Return the signals that have handlers."""
    return {signal for signal in range(1, 65) if program.target.handled_signals() >> signal - 1 & 1}


def test_probes_that_come_and_go_in_any_order(program):
    results, executed = run_all(program)
    rng = random.Random(25)
    with splicing(program) as session:
        armed, expected = {}, {}
        for _ in range(25):
            name = rng.choice(list(FUNCTIONS))
            state = session.edit(name).state
            kept = [want for want in state.wants if want.kind is not WantKind.LOOP]
            leaving = [want for want in kept if rng.random() < 0.5]
            there = {want.address for want in kept}
            fresh = [at for at in places_of(program, [name]) if at not in there and rng.random() < 0.3]
            wants = session.wants(name, fresh)
            session.engine.change([session.edit(name, wants, leaving)])
            for want in leaving:
                del armed[want.address]
            armed.update({want.address: want.tag for want in wants})
            expected.update({want.tag: 0 for want in wants})
            assert run_all(program)[0] == results
            for at, hook in armed.items():
                expected[hook] += executed[at]
        assert len(armed) > 10
        assert dict(zip(expected, session.hits(expected), strict=True)) == expected


# -- threads of their own


def test_threads_count_in_blocks_of_their_own(program):
    others = [program.target.new_thread() for _ in range(3)]
    with splicing(program) as session:
        (hook,) = session.count("sum_to")
        for number, thread in enumerate((program.target.main, *others)):
            for _ in range(number + 1):
                assert program.target.call(program["sum_to"], 4, thread=thread) == 10
        assert session.hits([hook]) == [10]
        bank = hook.bank
        assert int.from_bytes(program.target.mem.read(others[0].actual.fs_base + bank.slot, 8), "little") != 0
    assert program.target.mem.read(others[0].actual.fs_base + bank.slot, 8) == bytes(8)


def test_a_program_without_control_blocks_is_counted_all_the_same(program):
    """Its threads' pointers lead to memory that is not the C library's: the engine finds that in the stop."""
    target = program.target
    target.mem.write(target.main.actual.fs_base + 0x10, bytes(8))
    with splicing(program) as session:
        (hook,) = session.count("twice")
        assert not session.splicing.planning.slots
        assert program.call("twice", 4) == 8
        assert session.hits([hook]) == [1]


# -- failures


def test_whatever_system_call_fails_leaves_all_as_it_was_and_the_next_change_succeeds(program):
    target = program.target
    before, number = target.mappings(), 0
    while True:
        number += 1
        with splicing(program) as session:
            target.calls_made, target.failing_call = 0, number
            try:
                session.count("fib")
            except RemoteCallFailed:
                assert program.is_pristine()
                assert target.mappings() == before
                assert not target.files
                assert not session.module.claims.written
            else:
                break
            target.failing_call = None
            (hook,) = session.count("fib")
            assert program.call("fib", 7) == 13
            assert session.hits([hook]) == [41]
    assert number > 8, "no call has failed"


def test_a_write_that_fails_takes_the_others_back(simulated):
    """The functions lie on two pages; one of the two cannot be written."""
    filler = {f"filler_{n}": ".byte " + "90 " * 256 + "c3" for n in range(16)}
    program = Program(simulated, {"first": FUNCTIONS["nothing"], **filler, "last": "xor eax, eax; inc eax; ret"})
    pages = sorted({program[name] & -4096 for name in program.starts})
    for page in pages[0], pages[-1]:
        with splicing(program) as session:
            claims = session.module.claims
            edits = session.edits({name: session.wants(name) for name in program.starts})
            simulated.mem.fail_at = page
            with pytest.raises(OSError, match="the test wants"):
                session.engine.change(edits)
            assert simulated.mem.fail_at is None
            assert program.is_pristine()
            assert session.module.claims == claims
            hooks = [*session.count("first"), *session.count("last")]
            assert [program.call("first"), program.call("last")] == [0, 1]
            assert session.hits(hooks) == [1, 1]


def test_what_the_caller_ends_is_not_made(program):
    class Ended(Exception):  # noqa: N818 - the caller ends it
        pass

    def end():
        raise Ended

    with splicing(program) as session:
        with interruptible(end), pytest.raises(Ended):
            session.count("fib")
        assert program.is_pristine()
        assert not session.module.claims.written
        (hook,) = session.count("fib")
        program.call("fib", 5)
        assert session.hits([hook]) == [15]


def test_what_the_caller_ends_at_any_check_is_not_made(program):
    """While plans are made, patches are written, or what handlers are shown in these is described."""
    for last in range(1, 20):
        calls = []

        def end(last=last, calls=calls):
            calls.append(1)
            if len(calls) == last:
                raise InterruptedError

        with splicing(program) as session:
            session.splicing.view.hooks[0x1234] = Hook(ActionKind.VIEW)  # as if a handler were spliced
            with interruptible(end):
                try:
                    session.count("fib")
                except InterruptedError:
                    assert program.is_pristine()
                    assert not session.module.claims.written
                else:
                    break
            (hook,) = session.count("fib")
            program.call("fib", 5)
            assert session.hits([hook]) == [15]
    assert 4 <= last < 19  # where nothing is kept of the function's analysis, that asks, too


@pytest.mark.parametrize(("times", "made"), [(1, True), (2, True), (3, False)])
def test_where_the_program_maps_memory_meanwhile_another_place_is_looked_for(program, monkeypatch, times, made):
    """However long a try takes."""
    mapped, tries = preparation.map_arena, []

    def map_arena(*arguments, **named):
        tries.append(1)
        if len(tries) <= times:
            raise RemoteCallFailed("mmap", errno.EEXIST)
        return mapped(*arguments, **named)

    monkeypatch.setattr(preparation, "map_arena", map_arena)
    monkeypatch.setattr(preparation, "_PATIENCE", -1.0)
    with splicing(program) as session:
        if not made:
            with pytest.raises(RemoteCallFailed, match="File exists"):
                session.count("fib")
            assert program.is_pristine()
        (hook,) = session.count("fib")
        program.call("fib", 5)
        assert session.hits([hook]) == [15]


def test_plans_are_kept_of_a_change_that_comes_to_nothing(program, monkeypatch):
    """A short program has often ended when its signal handlers get splices: the next start asks for the same plans."""
    monkeypatch.setattr(preparation, "map_arena", lambda *_, **__: (_ for _ in ()).throw(RemoteCallFailed("mmap", 12)))
    with splicing(program) as session:
        plans = session.module.plans = EntryPlans(session.module.code.text, None)
        kept, start = [], program.code("fib").start
        monkeypatch.setattr(plans, "save", lambda: kept.append(plans.find(start, Want(start, WantKind.ENTRY))))
        with pytest.raises(RemoteCallFailed):
            session.count("fib")
        (splice,) = kept
        assert splice.strategy is Strategy.JUMP


def test_other_bytes_than_the_file_s_are_refused_and_left(program):
    target, at = program.target, program["twice"]
    with splicing(program) as session:
        target.mem.write(at + 1, b"\x90")
        (hook,) = session.count("twice")
        (other,) = session.count("zero")
        assert hook.refusal.reason is Reason.FOREIGN_BYTES
        assert target.mem.read(at, 2) == program.content[:1] + b"\x90"
        target.mem.write(at + 1, program.content[1:2])
        program.call("zero", 1)
        assert session.hits([other]) == [1]


# -- trial plans


def test_a_trial_plan_claims_nothing(simulated):
    """Not even the springboards that it has chosen: a plan made next finds them free."""
    program = Program(simulated, FUNCTIONS, alignment=1)
    with splicing(program) as session:
        session.count("fib")
        claims, mappings = session.module.claims, simulated.mappings()
        session.splicing.planning.use_space(mappings)
        wants, plans = session.wants("collatz", program.instructions("collatz")), []
        for _ in range(2):
            with claims.trial() as trial:
                plan = session.splicing.planning.planner(session.module, trial).plan(session.code("collatz"), wants)
            assert not plan.refused
            plans.append([(splice.head, splice.strategy, splice.springboard) for splice in plan.splices])
        assert plans[0] == plans[1]
        assert session.module.claims is claims
        assert simulated.mappings() == mappings


def test_a_trial_that_is_interrupted_leaves_what_is_armed_protected(simulated):
    """It plans as if the armed pun were not there, whose jump depends on bytes of the next function."""
    program = Program(simulated, FUNCTIONS, alignment=1)
    with splicing(program) as session:
        (armed,) = session.count("nothing")
        armed_splices = [splice.planned for splice in session.module.splices()]
        with pytest.raises(KeyboardInterrupt), session.module.claims.trial(armed_splices):
            raise KeyboardInterrupt
        hooks = count_all(session, ["zero", "own_address"])
        for name in ("nothing", "zero", "own_address"):
            program.call(name, 3)
        assert session.hits([armed]) == [1]
        assert {at: hook.refusal for at, hook in hooks.items() if hook.refusal is not None} == {}
        assert set(counted(session, hooks).values()) == {1}


# -- without the session that made it


def test_what_a_dead_controller_has_left_is_removed_by_its_journal_alone(program):
    target = program.target
    before = target.mappings()
    session = Splicing(program)
    count_all(session, ["fib", "sum_to"])
    program.call("fib", 5)
    session.splicing.close()
    removal = remove(as_process(target))
    assert (removal.foreign, removal.kept) == ((), ())
    assert removal.splices == len(list(session.module.splices()))
    assert program.is_pristine()
    assert target.mappings() == before
    assert program.call("fib", 5) == 5


def test_probes_that_are_switched_off_for_a_while_count_on_afterwards(program):
    with splicing(program) as session:
        (hook,) = session.count("sum_to")
        for switch, hits in ((suspend, 1), (resume, 1), (suspend, 2)):
            program.call("sum_to", 3)
            assert session.hits([hook]) == [hits]
            assert switch(as_process(program.target)).changed == 1
            assert program.is_pristine() == (switch is suspend)


def test_another_session_is_told_that_the_target_is_taken(program):
    with splicing(program) as session:
        session.count("twice")
        other = Splicing(program)
        with pytest.raises(SessionConflict, match="is being probed"):
            other.count("sum_to")
        other.splicing.close()
        assert program.call("twice", 2) == 4
