"""Functions that run elsewhere: exceptions, signals, debuggers and killed controllers, as the program sees them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import anyprobe
from anyprobe.binary.images.image import Image
from anyprobe.core.errors import UsageError
from anyprobe.data.findings.optimisation import interval_of
from anyprobe.probes.providers.function.optimising import optimiser
from anyprobe.probes.providers.function.optimising.relayout import Moved, Relayout
from anyprobe.splice.emitted import original_of
from support.driver import build, wait_until

pytestmark = pytest.mark.live

PROGRAM = r"""
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
volatile long going = 1, sink, begun;
extern "C" {
long turns(long);
__asm__(".globl turns\n.type turns, @function\nturns: push %rbx; mov %rdi, %rbx; test $1, %dil; jne 1f\n"
        "2: xor %eax, %eax; pop %rbx; ret\n1: call halts_not; mov %rbx, %rdi; jmp 2b\n.size turns, .-turns");
KEPT void thrower(long n) { if (n % 5 == 0) throw n; sink += n; }
KEPT long passes(long n) { long local = n * 3; thrower(n); return local + sink % 2 * 0; }
KEPT long catches(long count) {
    long caught = 0;
    for (long i = 0; i < count; i++) { try { sink += passes(i) + turns(i); } catch (long n) { caught += n; } }
    return caught;
}
KEPT long spins(long count) {
    long x = 1;
    for (long i = 0; i < count && going; i++) { x = x * 6364136223846793005L + i; begun = 1; }
    return x;
}
KEPT long halts_not(long n) { sink ^= n; return n; }
KEPT void spins_end(void) { sink++; }
KEPT long halts(long n) { sink += n; usleep(100000); return n; }
KEPT long waits(long n) { long r = halts(n); sink += r; return r + 1; }
}
static volatile long inside, outside, elsewhere;
static void handler(int, siginfo_t *, void *context) {
    char *pc = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (pc >= (char *)spins && pc < (char *)spins_end) inside++; else { outside++; elsewhere = (long)pc; }
}
static void *forever(void *) { return (void *)spins(1L << 62); }
static void *waiter(void *) { while (going) waits(3); return 0; }
int main() {
    char line[64];
    pthread_t thread;
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("ready\n");
    while (fgets(line, sizeof line, stdin)) {
        if (*line == 'c') printf("caught %ld\n", catches(1000));
        if (*line == 'f') {
            begun = 0;
            pthread_create(&thread, 0, forever, 0);
            while (!begun) usleep(100);
            printf("begun\n");
        }
        if (*line == 'w') { pthread_create(&thread, 0, waiter, 0); printf("begun\n"); }
        if (*line == 'e') { void *r; going = 0; pthread_join(thread, &r); going = 1; printf("ended %d\n", r != 0); }
        if (*line == 's') {
            struct sigaction action = {};
            action.sa_sigaction = handler; action.sa_flags = SA_SIGINFO | SA_RESTART;
            sigaction(SIGPROF, &action, 0);
            printf("set\n");
        }
        if (*line == 'p') {
            struct itimerval often = {{0, 1000}, {0, 1000}}, never = {};
            inside = outside = elsewhere = 0;
            setitimer(ITIMER_PROF, &often, 0);
            long expected = 0, got = 0;
            while (inside + outside < 100) got = spins(100000);
            setitimer(ITIMER_PROF, &never, 0);
            expected = spins(100000);
            printf("signals %ld %ld %d\n", inside, elsewhere, got == expected);
        }
    }
}
"""
NAMES = ("turns", "passes", "catches", "spins", "waits", "thrower")
CAUGHT = f"caught {sum(range(0, 1000, 5))}"
CONTROLLER = """
import sys, time
import anyprobe
from live.test_optimise import NAMES, relayout
session = anyprobe.attach(int(sys.argv[1]), unsafe=True)
layout = relayout(session, NAMES)
layout.apply()
print("moved", len(layout.moved), flush=True)
time.sleep(600)
"""


def relayout(session: anyprobe.Session, names: tuple[str, ...]) -> Relayout:
    functions = []
    for name in names:
        ((site,), _) = session.resolve(f"a.out:{name}")
        module = session.host.module(site.object)
        code = module.code.function_at(site.function.start)
        functions.append(Moved(module, code))
        functions[-1].find_calls()
    return Relayout(session.host, functions)


class Program:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def text(self) -> bytes:
        """Return the program's own text as it is in memory."""
        with open(f"/proc/{self.pid}/maps") as maps:
            low, high = next(line.split()[0].split("-") for line in maps if "r-xp" in line and "optimised" in line)
        with open(f"/proc/{self.pid}/mem", "rb") as memory:
            memory.seek(int(low, 16))
            return memory.read(int(high, 16) - int(low, 16))

    def has_ours(self) -> bool:
        with open(f"/proc/{self.pid}/maps") as maps:
            return "memfd:anyprobe" in maps.read()


@pytest.fixture
def program() -> Iterator[Program]:
    with running() as made:
        yield made


@contextmanager
def running() -> Iterator[Program]:
    path = build("optimised.cpp", "-O2", "-pthread", text=PROGRAM)
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield Program(process)
        finally:
            process.kill()


def test_an_exception_passes_through_functions_that_run_elsewhere(program):
    before = program.text()
    with anyprobe.attach(program.pid, unsafe=True) as session:
        layout = relayout(session, NAMES)
        for _ in range(3):
            layout.apply()
            assert {each.code.start for each in layout.moved} == {each.code.start for each in layout.functions}, [
                str(why) for why in layout.refused.values()
            ]
            assert layout.rebound() >= 4
            assert program.text() != before
            assert program.ask("c") == CAUGHT
            layout.revert()
            assert not layout.moved
            assert program.text() == before
            assert program.ask("c") == CAUGHT
        layout.apply()
        assert program.ask("c") == CAUGHT
    assert program.text() == before
    assert program.ask("c") == CAUGHT


@pytest.mark.parametrize("is_set", ["before", "after"])
def test_signal_handlers_see_the_pcs_of_the_original(program, is_set):
    if is_set == "before":
        assert program.ask("s") == "set"
    with anyprobe.attach(program.pid, unsafe=True) as session:
        layout = relayout(session, ("spins",))
        layout.apply()
        assert len(layout.moved) == 1
        if is_set == "after":
            assert program.ask("s") == "set"
            session.pump()
        inside, elsewhere, same = map(int, program.ask("p").split()[1:])
        patch = layout.functions[0].body.patch
        assert patch is not None
        assert (inside >= 90, patch.address <= elsewhere < patch.end, same) == (True, False, 1)


def test_a_thread_in_a_loop_goes_on_in_the_original_when_it_is_put_back(program):
    with anyprobe.attach(program.pid, unsafe=True) as session:
        layout = relayout(session, ("spins",))
        layout.apply()
        assert program.ask("f") == "begun"
        patch = layout.functions[0].body.patch
        assert patch is not None
        (low, high) = patch.address, patch.end
        wait_until(lambda: low <= pc_of_thread(program.pid) < high, "the thread is in the copy")
        layout.revert()
        code = layout.functions[0].code
        bias = layout.functions[0].module.bias
        wait_until(lambda: code.start <= pc_of_thread(program.pid) - bias < code.end, "the thread is in the original")
        layout.apply()
    assert not program.has_ours()
    assert program.ask("e") == "ended 1"


def pc_of_thread(pid: int) -> int:
    """Return the pc of the program's second thread, as gdb sees it."""
    command = ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "thread 2", "-ex", "print/x $pc"]
    out = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return int(out.split("$1 = ", 1)[1].split()[0], 16) if "$1 = " in out else 0


def test_a_session_that_ends_leaves_no_thread_in_a_copy(program):
    before = program.text()
    with anyprobe.attach(program.pid, unsafe=True) as session:
        layout = relayout(session, ("spins",))
        layout.apply()
        assert program.ask("f") == "begun"
    assert (program.text(), program.has_ours()) == (before, False)
    assert program.ask("e") == "ended 1"


def test_a_debugger_sees_the_stack_as_it_always_was(program):
    with anyprobe.attach(program.pid, unsafe=True) as session:
        layout = relayout(session, ("waits",))
        layout.apply()
        assert len(layout.moved) == 1
        assert program.ask("w") == "begun"
        command = ["gdb", "-p", str(program.pid), "-batch", "-nx", "-ex", "thread apply all backtrace"]

        def stack() -> str:
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout

        wait_until(lambda: has_in_order(stack(), "in halts", "in waits", "in waiter"), "halts, waits, waiter")
    assert program.ask("e").startswith("ended")


def has_in_order(text: str, *words: str) -> bool:
    places = [text.find(word) for word in words]
    return -1 not in places and places == sorted(places)


def test_what_a_killed_controller_leaves_is_put_back_by_detach(program):
    before = program.text()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CONTROLLER, str(program.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == f"moved {len(NAMES)}\n"
        assert program.ask("f") == "begun"
        controller.send_signal(signal.SIGKILL)
    assert program.ask("c") == CAUGHT
    assert program.text() != before
    subprocess.run([sys.executable, "-m", "anyprobe", "detach", "-p", str(program.pid)], check=True)
    assert (program.text(), program.has_ours()) == (before, False)
    assert program.ask("c") == CAUGHT
    assert program.ask("e") == "ended 1"


def test_each_place_of_a_copy_stands_for_the_instruction_that_has_the_same_bytes(program):
    with anyprobe.attach(program.pid, unsafe=True) as session:
        layout = relayout(session, ("spins", "catches"))
        layout.apply()
        for each in layout.moved:
            image, patch = Image.open(session.exe).text().memory, each.body.patch
            assert patch is not None
            plain = [
                insn for insn in each.code.insns if insn.flow.name == "NEXT" and not insn.iced.is_ip_rel_memory_operand
            ]
            copied = {old: at for old, at in patch.copies if original_of(patch, at) == old}
            found = [insn for insn in plain if insn.address + each.module.bias in copied]
            assert len(found) > 3
            for insn in found:
                at = copied[insn.address + each.module.bias]
                assert session.process.mem.read(at, insn.length) == image.read(insn.address, insn.length)


def test_probes_and_copies_of_one_function_refuse_each_other(program):
    with anyprobe.attach(program.pid, unsafe=True) as session:
        (probe,) = session.count("a.out:passes")
        layout = relayout(session, ("passes", "waits"))
        layout.apply()
        assert [str(why.reason) for why in layout.refused.values()] == ["overlaps-another-splice"]
        assert program.ask("c") == CAUGHT
        assert probe.armed
        assert session.snapshot().sites[0].hits == 1000
        (other,) = session.count("a.out:waits")
        assert not other.armed


def test_optimise_compares_and_says_what_came_of_it(program, monkeypatch):
    before = program.text()
    with anyprobe.attach(program.pid, unsafe=True) as session:
        assert program.ask("w") == "begun"
        found = session.optimise("a.out:waits", "a.out:halts", measure="a.out:waits", watch=0.3)
        assert (found.kept, found.before_ns) == (False, None)
        assert "fits the instruction cache" in found.reason
        monkeypatch.setattr(optimiser, "_instruction_cache", lambda: 0)
        monkeypatch.setattr(optimiser, "_FEW", 2)
        found = session.optimise("a.out:waits", "a.out:halts", measure="a.out:waits", watch=0.3, turns=2, turn=0.5)
        assert (found.functions, found.measured.split(":")[2]) == (1, "waits")
        assert found.interval is not None
        assert found.before_ns is not None
        assert found.after_ns is not None
        assert found.before_ns > 1000
        assert found.kept == (found.interval[0] > 1.01) == (program.text() != before)
    assert program.text() == before
    with anyprobe.attach(program.pid) as session, pytest.raises(UsageError, match="unsafe=True"):
        session.optimise("a.out:waits")


def test_command_leaves_a_small_program_alone_and_says_why(program):
    assert program.ask("w") == "begun"
    command = [sys.executable, "-m", "anyprobe", "optimise", "a.out:wait*", "a.out:halts", "-p", str(program.pid)]
    plain = subprocess.run([*command, "--watch", "0.3"], capture_output=True, text=True, check=False)
    assert (plain.returncode, plain.stdout) == (2, "")
    assert "--unsafe says that this is wanted" in plain.stderr
    ran = subprocess.run(
        [*command, "--unsafe", "--watch", "0.3", "--json"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert (document["kept"], document["before_ns"], document["interval"]) == (False, None, None)
    assert "fits the instruction cache" in document["reason"]
    assert not program.has_ours()


def test_intervals_are_those_of_pairs():
    low, high = interval_of([200.0, 220.0, 240.0], [100.0, 110.0, 120.0])
    assert (round(low, 9), round(high, 9)) == (2.0, 2.0)
    low, high = interval_of([100.0, 110.0], [100.0, 90.0])
    assert low < 1.0 < high
