"""Fault handlers: they see the faults of the probed instruction, and what they leave alone is the program's fate."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import anyprobe
from anyprobe import Count, emit
from anyprobe.kprobes import Kprobe, register_kprobe, register_kprobes, unregister_kprobe
from support.driver import TargetFailed, build, started, wait_until

pytestmark = pytest.mark.live
FAULTS = {
    "loads": (2, 3, 14, signal.SIGSEGV),
    "divides": (6, 2, 0, signal.SIGFPE),
    "overflows": (11, 2, 0, signal.SIGFPE),
    "undefined": (5, 2, 6, signal.SIGILL),
    "far_away": (10, 2, 13, signal.SIGSEGV),
    "unaligned": (7, 3, 13, signal.SIGSEGV),
    "beyond_file": (3, 2, 14, signal.SIGBUS),
}
"""Of functions of ``fatal_faults.c``: the offset and length of what faults, the number of the trap, the signal."""


def seeing(p, regs, trapnr):
    emit("fault", ip=regs.ip, trap=trapnr)
    return 0


def skipping(p, regs, trapnr):
    emit("fault", ip=regs.ip, trap=trapnr)
    regs.ax = 99
    regs.ip = p.addr + p.length
    return 1


def handled_signals(pid):
    return re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())[1]


def at(session, name, offset=0):
    (site,), _ = session.resolve(f"a.out:{name}")
    return site.address + offset


@pytest.mark.parametrize("name", FAULTS)
def test_a_handled_fault_goes_on_where_the_handler_says(name):
    offset, length, trap, _ = FAULTS[name]
    with started(build("fatal_faults.c"), name) as target:
        before = handled_signals(target.pid)
        with anyprobe.attach(target.pid, unsafe=True) as session:
            kp = Kprobe(symbol_name=name, offset=offset, fault_handler=skipping)
            kp.length = length
            assert register_kprobe(kp) == 0, kp.error
            target.go(3)
            rows = session.records(final=True)["fault"]
            assert [tuple(row)[-2:] for row in rows[["ip", "trap"]]] == [(at(session, name, offset), trap)] * 3
            assert (kp.hits, kp.nmissed) == (3, 0)
        assert handled_signals(target.pid) == before
        with pytest.raises(TargetFailed, match=FAULTS[name][3].name):
            target.go(1)


@pytest.mark.parametrize("name", FAULTS)
def test_an_unhandled_fault_is_the_programs_end(name):
    offset, _, trap, end = FAULTS[name]
    unsafe = name == "unaligned"
    with started(build("fatal_faults.c"), name) as target, anyprobe.attach(target.pid, unsafe=unsafe) as session:
        kp = Kprobe(symbol_name=name, offset=offset, fault_handler=seeing)
        assert register_kprobe(kp) == 0, kp.error
        with pytest.raises(TargetFailed, match=f"killed by {end.name}"):
            target.go(1)
        assert session.records(final=True)["fault"]["trap"].tolist() == [trap]


@pytest.mark.parametrize("name", ["loads", "beyond_file", "divides"])
def test_the_end_is_the_same_as_without_a_probe(name):
    """A debugger sees the signal twice more: number, code and address stay the same."""
    if not shutil.which("gdb"):
        pytest.skip("no gdb")
    ends = []
    for probed in (False, True):
        with started(build("fatal_faults.c"), name) as target, anyprobe.attach(target.pid) as session:
            if probed:
                assert register_kprobe(Kprobe(symbol_name=name, offset=FAULTS[name][0], fault_handler=seeing)) == 0
            ends.append(_end_of(target, stops=3 if probed else 1))
            session.records(final=True)
    base = [re.sub(r"0x\w{6,}", "mapped", end) for end in ends]  # where files are mapped differs from run to run
    assert base[0] == base[1]
    assert "SIG" in base[0]


def _end_of(target, stops):
    shown = 'printf "%d %d %p\\n", $_siginfo.si_signo, $_siginfo.si_code, $_siginfo._sifields._sigfault.si_addr'
    steps = [word for _ in range(stops) for word in ("-ex", "continue", "-ex", shown)]
    debugger = subprocess.Popen(
        ["gdb", "-nx", "-batch", "-p", str(target.pid), *steps, "-ex", "continue"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    status = Path(f"/proc/{target.pid}/status")
    wait_until(lambda: "TracerPid:\t0" not in status.read_text(), "the debugger is there")
    target.start(1)
    said, _ = debugger.communicate(timeout=180)
    last = [line for line in said.splitlines() if re.fullmatch(r"\d+ -?\d+ \S+", line)][-1]
    (ending,) = [line for line in said.splitlines() if line.startswith("Program terminated")]
    return f"{last} {ending}"


NAMES = ("reads", "divides", "undefined", "inner")
PLACES = {"reads": 0, "divides": 5, "undefined": 4, "inner": 4}
"""Functions of ``faults_handled.c``, and where they fault."""


def test_a_programs_own_handler_sees_its_own_pcs_and_registers():
    """The program checks pc, registers and si_addr in its handler: what is not handled by a probe comes to it."""
    with started(build("faults_handled.c")) as target, anyprobe.attach(target.pid) as session:
        before = handled_signals(target.pid)
        probes = [Kprobe(symbol_name=name, offset=PLACES[name], fault_handler=seeing) for name in NAMES]
        assert register_kprobes(probes) == 0, [kp.error for kp in probes]
        assert int(handled_signals(target.pid), 16) & ~int(before, 16) in (0, 1 << signal.SIGBUS - 1)
        target.go(50)
        rows = session.records(final=True)["fault"]
        seen = {kp.symbol_name: int((rows["ip"] == kp.addr).sum()) for kp in probes}
        assert seen == {"reads": 50, "divides": 50, "undefined": 50, "inner": 50}
        assert [kp.hits for kp in probes] == [50, 100, 50, 50]
        target.finish()


def test_what_a_probe_handles_does_not_come_to_the_programs_handler():
    with started(build("faults_handled.c")) as target, anyprobe.attach(target.pid, unsafe=True) as session:
        on = at(session, "reads", 8)

        def fault(p, regs, trapnr):
            regs.ip = p.on
            return 1

        kp = Kprobe(symbol_name="reads", fault_handler=fault)
        kp.on = on
        assert register_kprobe(kp) == 0, kp.error
        with pytest.raises(TargetFailed, match="BAD handled"):  # it misses one of the faults that it counts
            target.go(1)


def test_the_instruction_runs_again_where_the_handler_leaves_ip_alone():
    """That is another arrival, as it is where a program's own handler returns to what has faulted."""
    with started(build("fatal_faults.c"), "divides") as target, anyprobe.attach(target.pid, unsafe=True) as session:
        seen = Count("seen")

        def fault(p, regs, trapnr):
            seen.add()
            regs.di = regs.sp  # the divisor is what lies on the stack: not zero
            return 1

        kp = Kprobe(symbol_name="divides", offset=6, fault_handler=fault)
        assert register_kprobe(kp) == 0, kp.error
        target.go(4)
        assert (seen.result().total.count, kp.hits) == (4, 8)
        target.finish()
        session.snapshot()


def test_pre_and_post_handlers_and_several_probes():
    """Fault handlers run in order of registration up to the one that handles; what has faulted has no behind."""
    with started(build("fatal_faults.c"), "loads") as target, anyprobe.attach(target.pid, unsafe=True) as session:
        ran = Count("ran", by=("what",))

        def pre(p, regs):
            ran[1].add()

        def post(p, regs, flags):
            ran[2].add()

        def leaving(p, regs, trapnr):
            ran[3].add()
            return 0

        def never(p, regs, trapnr):
            ran[4].add()

        third = Kprobe(symbol_name="loads", offset=2, fault_handler=skipping)
        third.length = 3
        probes = [
            Kprobe(symbol_name="loads", offset=2, pre_handler=pre, post_handler=post),
            Kprobe(symbol_name="loads", offset=2, fault_handler=leaving),
            third,
            Kprobe(symbol_name="loads", offset=2, fault_handler=never),
        ]
        assert register_kprobes(probes) == 0, [kp.error for kp in probes]
        target.go(5)
        assert {key[0]: cell.count for key, cell in ran.result().entries.items()} == {1: 5, 3: 5}
        unregister_kprobe(probes[1])
        target.go(5)
        assert {key[0]: cell.count for key, cell in ran.result().entries.items()} == {1: 10, 3: 5}
        session.records(final=True)
        target.finish()


@pytest.mark.parametrize("threads", [1, 4])
def test_faults_on_several_threads_and_under_signals(threads):
    """Every second load faults and is handled; the program's results stay right, and every arrival counts once."""
    with started(build("faulting_threads.c"), str(threads)) as target:
        with anyprobe.attach(target.pid, unsafe=True) as session:
            seen = Count("seen")

            def fault(p, regs, trapnr):
                seen.add()
                regs.ip = p.addr + 4
                return 1

            kp = Kprobe(symbol_name="reads", fault_handler=fault)
            assert register_kprobe(kp) == 0, kp.error
            calls = target.go(5).calls["reads"]
            assert calls == 5_000 * threads
            assert (kp.hits, seen.result().total.count) == (calls, calls // 2)
            session.snapshot()
        with pytest.raises(TargetFailed, match="SIGSEGV"):
            target.go(1)


@pytest.mark.parametrize("name", [signal.SIGSEGV, signal.SIGFPE])
def test_signals_from_elsewhere_are_the_programs(name):
    with started(build("fatal_faults.c"), "loads") as target, anyprobe.attach(target.pid) as session:
        kp = Kprobe(symbol_name="loads", offset=2, fault_handler=seeing)
        assert register_kprobe(kp) == 0
        target.process.send_signal(name)
        assert target.process.wait(180) == -name
        session.records(final=True)


def test_what_changes_the_program_is_for_unsafe_sessions(target, session):
    def fault(p, regs, trapnr):
        return 1

    kp = Kprobe(symbol_name="chosen", offset=5, fault_handler=fault)
    assert register_kprobe(kp) == -errno.EPERM
    assert "unsafe=True" in kp.error
    assert not session.probes


def test_what_branches_has_no_fault_handler(target, session):
    for offset in (0xB, 0x15):
        kp = Kprobe(symbol_name="chosen", offset=offset, fault_handler=seeing)
        assert register_kprobe(kp) == -errno.EOPNOTSUPP
    assert not session.probes


def test_no_fault_handlers_without_a_stop(target):
    with anyprobe.attach(target.pid, live=True):
        kp = Kprobe(symbol_name="chosen", offset=5, fault_handler=seeing)
        assert register_kprobe(kp) == -errno.EOPNOTSUPP
        assert "without a stop" in kp.error


def test_handlers_that_the_program_sets_later():
    """They take the place of ours; with the next snapshot faults come to the probes first again."""
    with started(build("faults_handled.c"), "late") as target, anyprobe.attach(target.pid) as session:
        probes = [Kprobe(symbol_name=name, offset=PLACES[name], fault_handler=seeing) for name in NAMES]
        assert register_kprobes(probes) == 0, [kp.error for kp in probes]
        target.go(1)
        session.snapshot()
        target.go(20)
        rows = session.records(final=True)["fault"]
        assert {kp.symbol_name: int((rows["ip"] == kp.addr).sum()) for kp in probes} == dict.fromkeys(NAMES, 20)
        target.finish()


def test_the_actions_come_back_when_the_controller_has_died():
    """The program lives on with the probes, and ``detach`` undoes all of it."""
    with started(build("fatal_faults.c"), "divides") as target:
        before = handled_signals(target.pid)
        controller = os.fork()
        if controller == 0:
            try:
                anyprobe.attach(target.pid, unsafe=True).__enter__()
                kp = Kprobe(symbol_name="divides", offset=6, fault_handler=skipping)
                kp.length = 2
                assert register_kprobe(kp) == 0
            except BaseException:
                os._exit(1)
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitpid(controller, 0)[1] == signal.SIGKILL
        assert handled_signals(target.pid) != before
        target.go(3)
        detached = subprocess.run(
            [sys.executable, "-m", "anyprobe", "detach", "-p", str(target.pid)], stdin=subprocess.DEVNULL, timeout=180
        )
        assert detached.returncode == 0
        assert handled_signals(target.pid) == before
        assert "memfd:anyprobe" not in Path(f"/proc/{target.pid}/maps").read_text()
        with pytest.raises(TargetFailed, match="SIGFPE"):
            target.go(1)
