"""Acceptance: traps on demand. Exact counts, the program's own SIGTRAPs left to it, and no death by any of it."""

import ctypes
import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import anyprobe
from anyprobe.splice.userspace.signal_actions import blocked_now, unsettled_now
from anyprobe.target.process.process import Process
from anyprobe.target.system import ptrace
from live.test_controller_killed import Controller, one_death, one_failure
from live.test_situations import arm, compare, since, usable
from support.driver import Counts, MissingTool, Target, started, wait_until
from support.image import Image
from support.results import hits, missed, refusals, strategies
from support.situations import REGISTERS, SITUATIONS, Situation
from support.standing import counted_by_command

TGKILL = 234
TRAP_BIT = 1 << (signal.SIGTRAP - 1)
ROUNDS = 300
EXCEPTIONS = {
    "all-signals-blocked": "refused, see below",
    "own-sigtrap-handler": "its entry is an int3 of its own, see below",
    "handler-parked-inside": "a handler stays inside the patch until the program ends",
}
SAFE = [situation for situation in SITUATIONS if situation.name not in EXCEPTIONS]
TIMED = ("exception", "longjmp", "tail-call", "tiny-function", "timer-signals", "fork", "coroutines")
LIVELY = ("thread-parked-inside", "timer-signals", "spawn", "processes-sharing-memory", "thread-churn", "fork")
"""Situations in which a change of the table, or of who is stopped where, could matter."""


def caught(pid: int) -> int:
    """Return the signals that a process handles, as a mask."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("SigCgt:")]
    return int(line.split()[1], 16)


def catches_trap(pid: int) -> bool:
    """Whether a process has a handler for SIGTRAP."""
    return bool(caught(pid) & TRAP_BIT)


def named(*names: str) -> list:
    """Return parameters for situations; without names for all that are safe."""
    return [pytest.param(s, id=s.name) for s in SAFE if s.name in names or not names]


@pytest.fixture
def target(situation: Situation) -> Iterator[Target]:
    try:
        executable = situation.build()
    except MissingTool as tool:
        pytest.skip(f"needs {tool}")
    with started(executable, *situation.arguments) as running:
        yield running


@pytest.mark.parametrize("situation", named())
def test_situations(situation: Situation, target: Target) -> None:
    """Every situation that other strategies have to stand, the tiniest functions included: none is refused."""
    exact(situation, target, "both")


@pytest.mark.parametrize("situation", named(*TIMED))
def test_timed(situation: Situation, target: Target) -> None:
    """Entries and exits find each other as behind jumps."""
    exact(situation, target, "time")


def exact(situation: Situation, target: Target, mode: str) -> None:
    """Compare what is counted with what the program counts, and its memory before and after."""
    before = Counts(dict(target.go(0).calls), dict(target.counts.returns), dict(target.counts.tails))
    image = Image.of(target.pid)
    with anyprobe.attach(target.pid, strategy="trap") as session:
        arm(session, usable(situation, target), mode)
        # the entry of a signal handler is reached by a jump already, so that the handler sees the program's own pcs
        assert strategies(session.snapshot()) <= {"trap"} | ({"jump"} if caught(target.pid) & ~TRAP_BIT else set())
        counts = since(before, target.go(ROUNDS if situation.rounds > ROUNDS else situation.rounds // 10 + 1))
        refused = refusals(session.refused)
        # a trap's frame would be written to a stack that must not be, too
        assert mode == "time" or set(refused.values()) <= {"alternate-stack"}
        compare(situation, mode, counts, session.snapshot(), refused)
    image.assert_restored(target.pid)
    assert not catches_trap(target.pid)
    target.go(2)
    target.finish()


@pytest.mark.parametrize("situation", named(*LIVELY))
def test_situations_while_running(situation: Situation, target: Target) -> None:
    """Armed and removed again and again while the program runs: nothing it checks is ever wrong."""
    target.go(0)
    functions = usable(situation, target)
    target.run_freely()
    with anyprobe.attach(target.pid, strategy="trap") as session:
        for _ in range(4):
            probes = arm(session, functions, "both")
            target.check_alive()
            session.remove(*probes)
        target.check_alive()
    target.halt()
    target.go(2)
    target.finish()


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_exact_while_others_come_and_go(run_target, threads):
    """One function is counted all the time; others are armed and removed at random while it runs."""
    target = run_target("counts.c", str(threads))
    chance = random.Random(threads)
    others = ["a.out:leaf4", "a.out:side", "a.out:side%return", "a.out:leaf4%return"]
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count("a.out:work")
        target.run_freely()
        for _ in range(30):
            probes = session.count(*chance.sample(others, 2))
            target.idle(chance.random() * 0.02)
            session.remove(*probes)
        counts = target.halt()
        snapshot = session.snapshot()
        assert hits(snapshot, "work") == counts.calls["work"]
        assert missed(snapshot) == 0
        assert strategies(snapshot) == {"trap"}
    target.finish()


def test_machine_state(run_target):
    """All registers, flags, vector state and the red zone survive."""
    target = run_target(REGISTERS.source)
    functions = [f for f in REGISTERS.functions if f in target.go(1).calls]
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count(*(f"a.out:{f}" for f in functions), *(f"a.out:{f}%return" for f in functions))
        assert refusals(session.refused) == {}
        target.go(100)
    target.finish()


# -- other people's SIGTRAPs


@pytest.mark.parametrize("kind", ["info", "plain", "ignore"])
def test_own_sigtraps_go_to_the_program(run_target, kind):
    """A program that traps itself sees its own traps, with its own mask and siginfo, and no others."""
    target = run_target("trap_handler.c", kind)
    before = dict(target.go(1).calls)
    names = ("before", "inside", "one_byte")
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count(*(f"a.out:{name}" for name in names), *(f"a.out:{name}%return" for name in names))
        assert not session.refused
        counts = target.go(1000)
        snapshot = session.snapshot()
        for name in names:
            assert hits(snapshot, name) == hits(snapshot, name, "return") == counts.calls[name] - before[name]
    assert catches_trap(target.pid) == (kind != "ignore")
    target.go(10)
    target.finish()


@pytest.mark.parametrize("kind", ["info", "plain", "ignore"])
def test_probes_come_where_a_thread_meets_traps_all_the_time(run_target, monkeypatch, kind):
    """The only thread meets a trap between being seized and being interrupted, each time, so it stops there."""
    target = run_target("trap_handler.c", kind)
    interrupt = ptrace.interrupt

    def interrupt_late(tid):
        time.sleep(0.002)  # many turns of the program: it has met a trap by then
        interrupt(tid)

    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count("a.out:one_byte")
        target.run_freely()
        monkeypatch.setattr(ptrace, "interrupt", interrupt_late)
        for _ in range(3):
            session.remove(*session.count("a.out:before", "a.out:inside%return"))
            assert not session.refused
        monkeypatch.undo()
        counts = target.halt()
        assert hits(session.snapshot(), "one_byte") == counts.calls["one_byte"]
    target.go(10)
    target.finish()


def test_detaching_from_a_parent_that_waits_in_vfork(run_target):
    """Its child can make calls, and has signal actions of its own: the parent's are put back when it has gone on."""
    target = run_target("trap_and_vfork.c")
    target.go(1)
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count("a.out:work")
        find = Process.open(target.pid).relatives.find
        for _ in range(20):
            target.start(1)
            target.wait_for("waiting")
            wait_until(lambda: find() or target.answers(), "the child")
            if find():
                break
            target.wait_done()  # it has ended before it was looked for
        session.detach()
        assert not any("still has probes" in warning for warning in session.warnings)
    target.wait_done()
    target.go(1)
    target.finish()


@pytest.mark.parametrize("live", [False, True], ids=["stops", "live"])
def test_a_program_that_nearly_always_waits_in_vfork(run_target, live):
    """A moment between two of its children is found, since it is waited for: nobody has to try again."""
    target = run_target("vforks_often.c")
    with anyprobe.attach(target.pid, strategy="trap", live=live) as session:
        target.run_freely()
        for _ in range(4):
            probes = session.count("a.out:work")
            assert refusals(session.refused) == {}
            session.remove(*probes)
    target.halt()
    target.finish()


def test_storm_of_signals(run_target):
    """SIGTRAPs from another thread at the very moments of traps, and timer signals on alternate stacks."""
    target = run_target("trap_storm.c")
    before = dict(target.go(1).calls)
    names = ("wide", "pushing", "last_byte")
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count(*(f"a.out:{name}" for name in names), *(f"a.out:{name}%return" for name in names))
        assert not session.refused
        counts = target.go(5)
        snapshot = session.snapshot()
        for name in names:
            assert hits(snapshot, name) == hits(snapshot, name, "return") == counts.calls[name] - before[name]
    target.go(1)
    target.finish()


def test_default_action_still_kills(run_target):
    """``kill -TRAP`` ends a program without a handler as it would have ended without probes."""
    target = run_target("counts.c", "2")
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count("a.out:work")
        target.run_freely()
        target.process.send_signal(signal.SIGTRAP)
        wait_until(lambda: session.exited, "the program has died")
    assert target.process.wait(180) == -signal.SIGTRAP


def test_own_int3_still_kills(run_target):
    """So does an int3 of its own, and the pc behind it is what its parent would see."""
    target = run_target("trap_handler.c", "none")
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count("a.out:before")
        target.start(1)
        wait_until(lambda: session.exited, "the program has died")
        assert hits(session.snapshot(), "before") == 1
    assert target.process.wait(180) == -signal.SIGTRAP


def test_handler_set_while_probes_are_away(run_target):
    """A handler that the program sets later is left to it: traps are refused, and the end does not touch it."""
    target = run_target("trap_handler.c", "late")
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.remove(*session.count("a.out:before"))
        target.go(1)
        session.count("a.out:inside")
        assert refusals(session.refused) == {"inside": "trap-unsafe"}
        target.go(10)
    assert catches_trap(target.pid)
    target.go(10)
    target.finish()


# -- refusals


@pytest.mark.parametrize(
    ("program", "arguments", "function", "says"),
    [
        ("all_blocked.c", (), "quietly", "has SIGTRAP blocked"),
        ("trap_handler.c", ("once",), "before", "SA_RESETHAND"),
        ("own_sigtrap.c", (), "trapping", "int3 of the program's own"),
    ],
)
def test_refused(run_target, program, arguments, function, says):
    """What a trap could kill, or could not be told from, is refused by name, and nothing is changed."""
    target = run_target(program, *arguments)
    caught = catches_trap(target.pid)
    image = Image.of(target.pid)
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count(f"a.out:{function}")
        ((_, refusal),) = session.refused
        assert refusal.reason == "trap-unsafe"
        assert says in refusal.detail
        if program == "all_blocked.c":
            assert any(f"thread {tid.name} " in refusal.detail for tid in Path(f"/proc/{target.pid}/task").iterdir())
        assert catches_trap(target.pid) == caught
        target.go(0)
    image.assert_restored(target.pid)
    target.finish()


def test_functions_that_libc_calls_with_signals_blocked(run_target):
    """They are refused by name; the session warns; ``list`` and ``explain`` say the same."""
    target = run_target("spawns.c")
    with anyprobe.attach(target.pid, strategy="trap") as session:
        assert any("SIGTRAP blocked" in warning for warning in session.warnings)
        session.count("libc:dup2", "libc:getppid")
        assert refusals(session.refused) == {"dup2": "trap-unsafe"}
        listed = {site.spec: site for site in session.list("libc:dup2", "libc:getppid")}
        assert {site.strategy for site in listed.values()} == {"trap", None}
        assert dict(session.explain("libc:getppid").verdicts) == {"trap": "chosen"}
        inside = session.count("libc:pthread_create%insn")[0]
        assert inside.places == []
        assert {why.reason.value for _, why in inside.refused} == {"trap-unsafe"}
    with anyprobe.attach(target.pid) as session:
        assert not session.warnings
        assert dict(session.explain("libc:getppid").verdicts)["trap"].startswith("not used")
        assert {site.strategy for site in session.list("a.out:*")} & {"trap"} == set()
    target.finish()


# -- children, beginnings and deaths


def test_fork_child_keeps_its_traps_and_loses_them(run_target):
    """A child inherits handler and table; its calls are counted; the end of the session restores it as well."""
    target = run_target("living_child.c")
    image = Image.of(target.pid)
    with anyprobe.attach(target.pid, strategy="trap") as session:
        session.count("a.out:shared_work")
        child = target.go(2).calls["child"]
        session.count("a.out:shared_work%return")  # the parent's table grows; the child finds its site in it too
        parents = 1000 * 2
        wait_until(lambda: hits(session.snapshot(), "shared_work") > 3 * parents, "the child's calls are counted")
        assert catches_trap(child)
        target.go(2)
    image.assert_restored(target.pid)
    assert Image.of(child).text == image.text
    assert not catches_trap(child)
    target.go(2)
    target.finish()


def test_run_from_the_first_instruction(compiled):
    """The loader and the program, before there is thread-local storage."""
    with anyprobe.run([str(compiled("run_alone.c"))], strategy="trap") as session:
        session.count("ld-linux-x86-64:_dl_*", "a.out:plain", "a.out:main")
        session.resume()
        assert session.wait(180) == 42 << 8
        snapshot = session.snapshot()
    assert hits(snapshot, "_dl_start") == 1
    assert hits(snapshot, "plain") == 7
    assert hits(snapshot, "main") == 1


def test_command_line(compiled):
    """``count --strategy trap`` counts, warns and says how."""
    with started(compiled("counts.c")) as target:
        document = json.loads(counted_by_command(target, "count", "a.out:work", "--strategy", "trap", "--json"))
        (site,) = document["sites"]
        assert site["strategy"] == "trap"
        assert site["hits"] > 0
        assert any("SIGTRAP" in warning for warning in document["warnings"])
        target.finish()


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    running = Controller("trap_controller.py")
    yield running
    running.close()


def test_controller_killed_with_traps_armed(controller, compiled):
    """The program goes on; ``probes`` lists traps; ``detach`` restores bytes and action, in a child too."""
    with started(compiled("living_child.c")) as target:
        image = Image.of(target.pid)
        assert controller.ask("hold", target.pid, "a.out:shared_work", "a.out:shared_work%return")["hits"] == 0
        child = target.go(2).calls["child"]
        assert controller.ask("drop")["killed"]
        target.go(2)
        assert catches_trap(target.pid)
        installed = json.loads(controller.ask("cli", "probes", "-p", target.pid, "--json")["out"])
        listed = [probe for probe in installed if "INTERNAL" not in probe["flags"]]
        assert {probe["strategy"] for probe in listed} == {"trap"}
        assert [probe["type"] for probe in listed] == ["k", "r"]
        assert controller.ask("cli", "detach", "-p", target.pid)["exit"] == 0
        image.assert_restored(target.pid)
        assert Image.of(child).text == image.text
        assert not catches_trap(target.pid)
        assert not catches_trap(child)
        target.go(2)
        target.finish()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["kill-before", "kill-after", "fail:EIO"])
def test_every_call(controller, compiled, request, kind):
    """The controller killed, or failed by the system, at its calls: bytes and action are restored."""
    with started(compiled("counts.c"), "3") as target:
        target.go(1)
        answer = controller.ask("session", target.pid, "none")
        image = Image.of(target.pid)
        calls = int(controller.ask("session", target.pid, "none")["calls"])
        assert "untyped" not in answer
        every = range(1, calls + 1)
        chosen = every if request.config.getoption("--torture") else random.Random(kind).sample(every, 10)
        target.run_freely()
        for number in chosen:
            plan = f"{kind.partition(':')[0]}:{number}" + (":EIO" if kind.startswith("fail") else "")
            (one_death if kind.startswith("kill") else one_failure)(controller, target, image, plan)
            assert not catches_trap(target.pid)
        target.halt()
        target.finish()


def test_a_thread_that_has_met_a_trap_is_waited_for_until_it_has_run():
    """Stopped again before it has, it would never come to its signal."""
    child = subprocess.Popen(["sleep", "60"])
    process = Process.open(child.pid)
    try:
        child.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{child.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
        assert unsettled_now(process) == 0
        ctypes.CDLL(None).syscall(TGKILL, child.pid, child.pid, signal.SIGTRAP)
        assert (blocked_now(process), unsettled_now(process)) == (0, child.pid)
    finally:
        process.close()
        child.kill()
        child.wait()
