"""Handlers behind instructions: on every way on, with the registers and the stack as they are by then."""

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

import anyprobe
from anyprobe import Count, UsageError, emit, i64, u64
from support.driver import build, started, wait_until

pytestmark = pytest.mark.live
ROUNDS, CALLS = 3, 300


@pytest.fixture
def target():
    with started(build("behind.c", "-O1", "-fcf-protection=none")) as running:
        yield running


class Function:
    """One function of the target as its file has it: where its instructions are."""

    def __init__(self, name):
        executable = build("behind.c", "-O1", "-fcf-protection=none")
        listing = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", f"--disassemble={name}", executable],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        lines = [line.split("\t") for line in listing.splitlines() if line.startswith("    ")]
        self.name = name
        self.places = [(int(line[0].strip(" :"), 16), line[1]) for line in lines]

    def offset(self, mnemonic):
        return next(at for at, text in self.places if text.split()[0] == mnemonic) - self.places[0][0]

    def behind(self, mnemonic):
        """Return the offset of what comes behind the instruction."""
        offsets = [at - self.places[0][0] for at, _ in self.places]
        return offsets[offsets.index(self.offset(mnemonic)) + 1]

    def spec(self, mnemonic):
        return f"a.out:{self.name}+{self.offset(mnemonic):#x}"


def records_behind(target, name, mnemonic, rounds=ROUNDS):
    """Run rounds with a handler behind an instruction; return the site's hits and what the handler saw.

    Addresses are offsets from the start of the function; ``stack`` is what the stack pointer points at.
    """
    with anyprobe.attach(target.pid) as session:

        @session.after(Function(name).spec(mnemonic))
        def on_behind(ctx):
            emit("seen", ip=ctx.ip, func=u64(ctx.func), rax=ctx.regs.rax, rsp=ctx.regs.rsp, top=ctx.caller)

        @session.entry(f"a.out:{name}")
        def on_entry(ctx):
            emit("entered", rsp=ctx.regs.rsp, func=u64(ctx.func), ip=ctx.ip, back=ctx.caller)

        assert session.refused == []
        target.go(rounds)
        snapshot = session.snapshot()
        found = session.records(final=True)
    hits = [site.hits for site in snapshot.sites]
    assert [site.nmissed for site in snapshot.sites] == [0, 0]
    start = int(found["entered"]["func"][0])
    assert set(found["entered"]["ip"].tolist()) == {start}
    assert set(found["seen"]["func"].tolist()) == {start}
    stack = int(found["entered"]["rsp"][0])
    assert len(found["seen"]) == hits[0]
    shown = [
        (int(row["ip"]) - start, int(row["rax"]), int(row["rsp"]) - stack, int(row["top"]) - start)
        for row in found["seen"]
    ]
    return shown, int(found["entered"]["back"][0]) - start


def test_behind_an_instruction_its_result_is_there(target):
    shown, _ = records_behind(target, "behind_step", "lea")
    assert [(ip, rax) for ip, rax, *_ in shown] == [(4, n + 5) for n in range(100)] * ROUNDS
    target.finish()


def test_both_edges_of_a_branch(target):
    function = Function("behind_branch")
    shown, _ = records_behind(target, function.name, "je")
    assert [ip for ip, *_ in shown] == [function.offset("add"), function.behind("je")] * 50 * ROUNDS
    target.finish()


def test_both_edges_of_a_loop_instruction(target):
    function = Function("behind_loop")
    shown, _ = records_behind(target, function.name, "loop")
    again, on = function.offset("add"), function.behind("loop")
    assert [(ip, rax) for ip, rax, *_ in shown] == [(again, 7), (again, 14), (on, 21)] * CALLS
    target.finish()


@pytest.mark.parametrize("name", ["behind_jump", "behind_through"])
def test_behind_a_jump_the_handler_is_at_its_target(target, name):
    function = Function(name)
    shown, _ = records_behind(target, name, "jmp")
    assert [(ip, rax) for ip, rax, *_ in shown] == [(function.offset("inc"), n) for n in range(100)] * ROUNDS
    target.finish()


@pytest.mark.parametrize(("name", "depth"), [("behind_call", 16), ("behind_pointer", 16), ("behind_slot", 32)])
def test_behind_a_call_the_callee_has_not_begun(target, name, depth):
    function, callee = Function(name), Function("behind_callee")
    shown, _ = records_behind(target, name, "call")
    distance = callee.places[0][0] - function.places[0][0]
    assert [(ip, rsp, top) for ip, _, rsp, top in shown] == [(distance, -depth, function.behind("call"))] * CALLS
    target.finish()


@pytest.mark.parametrize(("name", "popped"), [("behind_step", 8), ("behind_popping", 16)])
def test_behind_a_return_the_handler_is_in_the_caller(target, name, popped):
    shown, back = records_behind(target, name, "ret")
    assert [(ip, rsp) for ip, _, rsp, _ in shown] == [(back, popped)] * CALLS
    target.finish()


def test_behind_a_system_call_its_result_is_there(target):
    shown, _ = records_behind(target, "behind_getpid", "syscall")
    assert [rax for _, rax, *_ in shown] == [target.pid] * CALLS
    target.finish()


def test_what_is_not_completed_has_no_behind():
    counts = Count("counts", by=("which",))
    with started(build("behind.c", "-O1", "-fcf-protection=none"), "leaving") as target:
        with anyprobe.attach(target.pid) as session:

            @session.at(Function("behind_load").spec("mov"))
            def on_load(ctx):
                counts[1].add()

            @session.after(Function("behind_load").spec("mov"))
            def on_loaded(ctx):
                counts[2].add()

            @session.at(Function("behind_wait").spec("syscall"))
            def on_wait(ctx):
                counts[3].add()

            @session.after(Function("behind_wait").spec("syscall"))
            def on_waited(ctx):
                counts[4].add()

            assert session.refused == []
            target.go(1)
        target.finish()
    found = {key: cell.count for (key,), cell in counts.result().entries.items()}
    assert (found[1], found[2]) == (20, 10)
    assert 0 < found[3] <= 20  # the signal may come before the call is made
    assert 4 not in found


def test_every_instruction_that_begins_ends(target):
    before, behind = Count("before", by=("ip",)), Count("behind", by=("ip",))
    with anyprobe.attach(target.pid) as session:

        @session.at("a.out:behind_pop:insn", "a.out:behind_popping:insn")
        def on_before(ctx):
            before[ctx.ip].add()

        @session.after("a.out:behind_pop:insn", "a.out:behind_popping:insn")
        def on_behind(ctx):
            behind[ctx.ip].add()

        target.go(ROUNDS)
    entered = {key: cell.count for key, cell in before.result().entries.items()}
    left = {key: cell.count for key, cell in behind.result().entries.items()}
    assert len(entered) >= 4
    assert set(entered.values()) == set(left.values()) == {CALLS}
    target.finish()


def test_before_a_call_the_return_address_is_not_pushed(target):
    function = Function("behind_call")
    with anyprobe.attach(target.pid) as session:

        @session.at(function.spec("call"))
        def on_call(ctx):
            emit("call", rsp=ctx.regs.rsp, ip=ctx.ip)

        @session.after(function.spec("call"))
        def on_called(ctx):
            emit("called", rsp=ctx.regs.rsp, back=ctx.caller)

        assert {site.strategy for site in session.snapshot().sites} == {"retarget"}
        target.go(1)
        found = session.records(final=True)
    assert set((found["call"]["rsp"] - found["called"]["rsp"]).tolist()) == {8}
    behind = function.behind("call") - function.offset("call")
    assert set((found["called"]["back"] - found["call"]["ip"]).tolist()) == {behind}
    target.finish()


@pytest.mark.parametrize("live", [False, True], ids=["stopped", "live"])
def test_they_come_and_go(target, live):
    odd = Count("odd")
    with anyprobe.attach(target.pid, live=live) as session:

        @session.after(Function("behind_step").spec("lea"), when=lambda ctx: ctx.regs.rax & 1)
        def on_behind(ctx):
            odd.add()

        target.go(1)
        assert odd.result().total.count == 50
        session.remove(*session.probes_of(on_behind))
        target.go(1)
        assert odd.result().total.count == 50
        session.enable(*session.probes_of(on_behind))
        target.go(1)
        assert odd.result().total.count == 100
    target.finish()


def test_returns_are_no_instructions(target):
    with anyprobe.attach(target.pid) as session:
        with pytest.raises(UsageError, match="name the instruction"):

            @session.after("a.out:behind_step%return")
            def on_behind(ctx):
                pass

        assert session.snapshot().sites == ()
    target.finish()


def test_a_thread_that_sleeps_in_the_call_comes_out_behind_it():
    woken = Count("woken")
    with started(build("behind.c", "-O1", "-fcf-protection=none"), "sleeping") as target:
        target.start(1)
        target._expect("sleeps")
        wait_until(lambda: "S" in Path(f"/proc/{target.pid}/stat").read_text().rpartition(")")[2], "it sleeps")
        with anyprobe.attach(target.pid) as session:

            @session.after(Function("behind_wait").spec("syscall"))
            def on_waited(ctx):
                woken[i64(ctx.regs.rax)].add()

            assert session.refused == []
            os.kill(target.pid, signal.SIGUSR1)
            target.wait_done()
        target.finish()
    assert {key: cell.count for (key,), cell in woken.result().entries.items()} == {-errno.EINTR: 1}
