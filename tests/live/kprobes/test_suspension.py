"""Everything is disarmed and armed again from outside, while the session that made it goes on."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import anyprobe
from anyprobe.kprobes import KPROBE_FLAG_OPTIMIZED, Kprobe, debugfs, register_kprobes, unregister_kprobe
from anyprobe.probes.providers.function.outside import leftover, requests

pytestmark = pytest.mark.live


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "anyprobe", *arguments], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def text(pid, address):
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(address)
        return memory.read(16)


@pytest.mark.parametrize("strategy", ["auto", "trap"])
def test_a_session_goes_on_while_its_probes_are_out(target, strategy):
    with anyprobe.attach(target.pid, strategy=strategy) as session:
        addresses = {name: session.resolve(f"a.out:{name}")[0][0].address for name in ("stepped", "chosen", "asked")}
        before = {name: text(target.pid, at) for name, at in addresses.items()}
        probes = [Kprobe(symbol_name=name) for name in addresses]
        assert register_kprobes(probes) == 0
        target.go(1)
        leftover.switch(target.pid, on=False)
        assert {name: text(target.pid, at) for name, at in addresses.items()} == before
        assert leftover.switch(target.pid, on=False).changed == 0
        target.go(1)
        assert [kp.hits for kp in probes] == [4000, 100, 1]
        leftover.switch(target.pid, on=True)
        target.go(1)
        assert [kp.hits for kp in probes] == [8000, 200, 2]
        leftover.switch(target.pid, on=False)
        unregister_kprobe(probes[0])
        leftover.switch(target.pid, on=True)
        target.go(1)
        assert [kp.hits for kp in probes[1:]] == [300, 3]
        assert text(target.pid, addresses["stepped"]) == before["stepped"]
        leftover.switch(target.pid, on=False)
    assert {name: text(target.pid, at) for name, at in addresses.items()} == before
    target.go(1)
    target.finish()


def test_a_thread_asleep_in_a_call_that_a_jump_goes_over(run_target):
    """It fell asleep while the bytes were the program's: the restart would execute the middle of the jump."""
    target = run_target("asleep_at_the_end.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:sleep_at_end")
        target.go(1)
        leftover.switch(target.pid, on=False)
        target.go(1)
        with pytest.raises(anyprobe.StopTimeout, match="inside a system call"):
            leftover.switch(target.pid, on=True)
        target.go(1)
    target.finish()


def test_the_commands(target):
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:stepped")
        assert command("disable", "--all", "-p", str(target.pid)) == f"disabled 1 sites in pid {target.pid}\n"
        (listed,) = json.loads(command("probes", "--json", "-p", str(target.pid)))
        assert listed["flags"] == ["DISABLED"]
        report = json.loads(command("enable", "--all", "--json", "-p", str(target.pid)))
        assert (report["enabled"], report["changed"]) == (True, 1)
    target.finish()


def test_optimization_is_switched_from_outside(target):
    with anyprobe.attach(target.pid) as session, ThreadPoolExecutor() as pool:
        kp = Kprobe(symbol_name="stepped")
        assert register_kprobes([kp]) == 0
        target.run_freely()
        for switch in ("off", "on"):
            asked = pool.submit(command, "optimize", switch, "-p", str(target.pid))
            while not asked.done():
                session.snapshot()
                time.sleep(0.01)
            words = "jumps" if switch == "on" else "traps"
            assert asked.result() == f"the probes in pid {target.pid} are reached by {words} where that is safe\n"
            assert bool(kp.flags & KPROBE_FLAG_OPTIMIZED) == debugfs.optimization() == (switch == "on")
        counts = target.halt()
        assert kp.hits == counts.calls["stepped"]
    target.finish()


def test_nobody_is_there_to_be_asked(target):
    report = requests.ask_for_optimization(target.pid, on=False)
    assert (report.sessions, str(report)) == (0, f"no living session has probes in pid {target.pid}")
    assert not report.done
    target.finish()


def test_under_load(target):
    with anyprobe.attach(target.pid) as session:
        probes = session.count("a.out:stepped", "a.out:chosen", "a.out:recursive", "a.out:asked%return")
        target.run_freely()
        for _ in range(10):
            leftover.switch(target.pid, on=False)
            leftover.switch(target.pid, on=True)
        target.halt()
        before = [site.hits for site in session.snapshot().sites]
        target.go(1)
        added = [site.hits - hits for site, hits in zip(session.snapshot().sites, before, strict=True)]
        assert added == [4000, 100, 11, 1]
        session.remove(*probes)
    target.finish()


def test_nothing_is_installed(target):
    assert str(leftover.switch(target.pid, on=True)) == "nothing is installed"
    target.finish()
