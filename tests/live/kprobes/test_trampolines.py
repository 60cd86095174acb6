"""Return probes at replaced return addresses: the value at every exit, and what is refused."""

import errno
import signal
import subprocess
import sys

import pytest

import anyprobe
from anyprobe import Count, Sum, emit
from anyprobe.journal.memfds import is_ours
from anyprobe.kprobes import (
    TRAMPOLINE,
    Kprobe,
    Kretprobe,
    disable_kretprobe,
    enable_kretprobe,
    register_kretprobe,
    register_kretprobes,
    regs_return_value,
    unregister_kretprobe,
)
from anyprobe.probes.providers.function.outside import leftover
from anyprobe.target.system.procfs import read_mappings
from support.driver import build, started, wait_until
from support.image import Image
from support.results import total

pytestmark = pytest.mark.live

NAMES = "simple deep leaping tailing signalled forking switching parked threaded exiting"
FUNCTIONS = tuple(NAMES.split())

JUMPING = r"""
#include "protocol.h"
PROBED long inner(long n) { return n * 2; }
PROBED long outer(long n) { return inner(n + 1); }
PROBED long outermost(long n) { return outer(n + 1); }
PROBED long pong(long n);
PROBED long ping(long n) { return n ? pong(n - 1) : 7; }
PROBED long pong(long n) { return n ? ping(n - 1) : 8; }
PROBED long away(long n) { return labs(n); }
PROBED long twice(long n) { return n * 2; }
asm(FUNCTION(calling) "call twice\nret\n" END(calling) ".p2align 4\n");
long calling(long n);
PROBED long caller_of(long n) { return outermost(n) + away(-n) + calling(n) + 1; }
static long next;
static void one_round(void) {
    long n = ++next;
    check(caller_of(n) == (n + 2) * 2 + n + n * 2 + 1, "the result");
    check(ping(10) == 7, "ping");
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; }
"""


def trampoline(name, handler, entry=None, **more):
    return Kretprobe(Kprobe(symbol_name=name, flags=TRAMPOLINE), handler, entry, **more)


def counting(count):
    def handler(ri, regs):
        count.add()

    return handler


@pytest.fixture
def demanding():
    with started(build("trampolines.c")) as running:
        yield running


@pytest.fixture
def jumping():
    with started(build("jumping.c", "-O2", "-fno-builtin", text=JUMPING)) as running:
        yield running


def test_every_return_is_seen_or_missed(demanding):
    demanding.go(1)
    before, start = Image.of(demanding.pid), dict(demanding.counts.returns)
    counts = {name: Count(name) for name in FUNCTIONS}
    probes = {name: trampoline(name, counting(count)) for name, count in counts.items()}
    with anyprobe.attach(demanding.pid) as session:
        assert register_kretprobes(list(probes.values()), session=session) == 0, [p.kp.error for p in probes.values()]
        found = demanding.go(40)
        for name, probe in probes.items():
            seen, returns = total(counts[name]).count, found.returns[name] - start[name]
            assert (name, seen + probe.nmissed) == (name, returns)
            if name == "switching":  # on another thread
                assert probe.nmissed == returns
            elif name == "forking":
                assert 0 < probe.nmissed < returns  # in the children: the calls are their parent's
            else:  # calls that fork children have begun, too
                assert probe.nmissed == 0
    assert session.warnings == []
    before.assert_restored(demanding.pid)
    demanding.go(5)
    demanding.finish()


def test_the_return_address_is_the_true_one_through_any_number_of_stubs(jumping):
    def entry(ri, regs):
        ri.data.caller = ri.ret_addr
        emit("entered", address=ri.ret_addr)
        return 0

    def handler(ri, regs):
        emit("left", address=ri.ret_addr, same=1 if ri.data.caller == ri.ret_addr else 0, value=regs_return_value(regs))

    names = ["inner", "outer", "outermost", "outer", "away", "labs"]
    with anyprobe.attach(jumping.pid) as session:
        place = session.resolve("a.out:caller_of")[0][0]
        probes = [trampoline(name, handler, entry) for name in names]
        assert register_kretprobes(probes, session=session) == 0, [p.kp.error for p in probes]
        jumping.go(3)
        records = session.records(final=True)
        addresses = {int(each) - place.address for name in ("entered", "left") for each in records[name]["address"]}
        assert len(addresses) == 2
        assert all(0 < each < place.function.size for each in addresses)
        assert records["left"]["same"].tolist() == [1] * 18
        assert records["left"]["value"].tolist() == [6, 6, 6, 6, 1, 1, 8, 8, 8, 8, 2, 2, 10, 10, 10, 10, 3, 3]
        assert [probe.nmissed for probe in probes] == [0] * 6
    jumping.go(2)
    jumping.finish()


def test_functions_that_jump_to_each_other_share_a_frame(jumping):
    """``ping`` is entered six times and comes back once; where no stub is left at one frame, that is missed, too."""
    sums = Sum("pings")

    def handler(ri, regs):
        sums.add(regs_return_value(regs))

    with anyprobe.attach(jumping.pid) as session:
        probe = trampoline("ping", handler)
        assert register_kretprobe(probe, session=session) == 0
        jumping.go(5)
        assert (total(sums).count, total(sums).sum, probe.nmissed) == (5, 35, 25)
    jumping.finish()


def test_a_function_that_begins_with_a_call(jumping):
    def handler(ri, regs):
        emit("left", address=ri.ret_addr, value=regs_return_value(regs))

    with anyprobe.attach(jumping.pid) as session:
        probe = trampoline("calling", handler)
        assert register_kretprobe(probe, session=session) == 0, probe.kp.error
        place = session.resolve("a.out:caller_of")[0][0]
        jumping.go(3)
        records = session.records(final=True)["left"]
        assert records["value"].tolist() == [2, 4, 6]
        assert all(0 < int(each) - place.address < place.function.size for each in records["address"])
    jumping.finish()


def test_a_call_that_comes_back_after_its_probe_was_removed_is_not_seen():
    with started(build("trampolines.c"), "stays") as staying:
        staying.go(2)
        before = Image.of(staying.pid)
        first, second = Count("first"), Count("second")
        with anyprobe.attach(staying.pid) as session:
            probe = trampoline("staying", counting(first))
            assert register_kretprobe(probe, session=session) == 0
            staying.go(1)
            unregister_kretprobe(probe, session=session)
            staying.go(1)  # a thread and a fork child come back
            assert total(first).count == 0
            other = trampoline("staying", counting(second))
            assert register_kretprobe(other, session=session) == 0
            staying.go(2)
            assert (total(first).count, total(second).count) == (0, 1)
            staying.go(1)
        assert session.warnings == []
        staying.go(1)  # it was under way when the session ended
        before.assert_restored(staying.pid)
        staying.finish()


HOLDER = """
import sys, time, anyprobe
from anyprobe import Count
from anyprobe.kprobes import TRAMPOLINE, Kprobe, Kretprobe, register_kretprobe
count = Count("returns")
def handler(ri, regs):
    count.add()
session = anyprobe.attach(int(sys.argv[1]))
for name in ("simple", "staying", "threaded"):
    register_kretprobe(Kretprobe(Kprobe(symbol_name=name, flags=TRAMPOLINE), handler), session=session)
print("armed", flush=True)
time.sleep(60)
"""


def test_calls_come_back_after_the_controllers_death_and_after_all_was_removed(tmp_path):
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)
    with started(build("trampolines.c"), "stays") as staying:
        staying.go(2)
        before = Image.of(staying.pid)
        command = [sys.executable, str(script), str(staying.pid)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout.readline() == "armed\n"
            staying.go(3)
            holder.send_signal(signal.SIGKILL)
        staying.go(2)
        wait_until(lambda: removed(staying.pid), "nothing of ours is left")
        staying.go(1)
        before.assert_restored(staying.pid)
        staying.finish()


def removed(pid):
    leftover.remove(pid)
    return not any(is_ours(mapping) for mapping in read_mappings(pid))


def test_a_handler_changes_what_the_caller_gets(jumping):
    def handler(ri, regs):
        regs.ax = 7 if ri.data.n == 1 else regs.ax

    def entry(ri, regs):
        ri.data.n = 1
        return 0

    with anyprobe.attach(jumping.pid, unsafe=True) as session:
        assert register_kretprobe(trampoline("pong", handler, entry), session=session) == 0
        jumping.go(2)
    jumping.finish()


def test_disabled_enabled_and_removed_while_calls_go_on(demanding):
    demanding.go(1)
    before = Image.of(demanding.pid)
    demanding.run_freely()
    with anyprobe.attach(demanding.pid) as session:
        count = Count("returns")
        probes = [trampoline(name, counting(count)) for name in ("threaded", "deep", "signalled", "parked")]
        for _ in range(5):
            assert register_kretprobes(probes, session=session) == 0
            for probe in probes:
                assert disable_kretprobe(probe, session=session) == 0
                assert enable_kretprobe(probe, session=session) == 0
            demanding.idle(0.02)
            wait_until(lambda: total(count).count > 0, "a call comes back")
            for probe in probes:
                unregister_kretprobe(probe, session=session)
    demanding.halt()
    before.assert_restored(demanding.pid)
    demanding.finish()


def test_what_must_keep_its_return_address_is_refused(demanding):
    with anyprobe.attach(demanding.pid) as session:
        probe = trampoline("vfork", counting(Count("n")))
        assert register_kretprobe(probe, session=session) == -errno.EOPNOTSUPP
        assert "vfork looks at its return address" in probe.kp.error
        pooled = trampoline("simple", counting(Count("n")), maxactive=4)
        assert register_kretprobe(pooled, session=session) == -errno.EOPNOTSUPP
    with started(build("trampolines.c", "-Wl,--no-as-needed", "-lstdc++")) as throwing:
        with anyprobe.attach(throwing.pid) as session:
            probe = trampoline("simple", counting(Count("n")))
            assert register_kretprobe(probe, session=session) == -errno.EOPNOTSUPP
            assert "exceptions may pass: libstdc++" in probe.kp.error
        throwing.go(1)
        throwing.finish()
    with anyprobe.attach(demanding.pid, live=True) as session:
        probe = trampoline("simple", counting(Count("n")))
        assert register_kretprobe(probe, session=session) == -errno.EOPNOTSUPP
    demanding.finish()
