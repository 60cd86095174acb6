"""Return probes in fork children: entry handlers and data of calls work there from the first call on."""

import os
import signal
from functools import partial

import numpy as np
import pytest

import anyprobe
from anyprobe import Count, Sum
from anyprobe.kprobes import Kprobe, Kretprobe, register_kretprobe
from anyprobe.splice.codegen.handlers.facts import INSTANCE_BYTES
from support.driver import wait_until
from support.forking import fork, ready, told
from support.results import total

pytestmark = pytest.mark.live
PATIENCE = 180


@pytest.fixture
def program(compiled):
    return str(compiled("forks_timed.c", "-O1", "-pthread"))


@pytest.mark.parametrize("maxactive", [0, 64])
@pytest.mark.parametrize(("mode", "count"), [("plain", 6), ("threads", 4), ("deep", 2)])
def test_calls_of_children_have_data_of_their_own(program, mode, count, maxactive):
    """At the same time, on stacks at the same addresses: each call finds what its own entry has left."""
    slow, calls, declined = Sum("slow"), Count("calls"), Count("declined")

    def entry(ri, regs):
        ri.data.slow = regs.di
        ri.data.sp = regs.sp
        if regs.di == 2:
            declined.add()
            return 1
        return 0

    def returned(ri, regs):
        if ri.data.sp == regs.sp:
            calls.add()
            slow.add(ri.data.slow)

    with ready(program, mode, count) as process, anyprobe.attach(process.pid) as session:
        rp = Kretprobe(Kprobe(symbol_name="work"), returned, entry, maxactive=maxactive)
        assert register_kretprobe(rp) == 0
        said = told(process.communicate("\n", timeout=PATIENCE)[0]).values()
        session.wait(180)
        assert (total(calls).count, rp.nmissed) == (sum(calls for calls, _ in said), 0)
        assert total(slow).sum == sum(slept for _, slept in said)
        assert total(declined).count == 0


@pytest.mark.parametrize("seen", [True, False], ids=["seen alive", "killed at once"])
def test_calls_in_which_children_are_killed_leave_nothing_behind(program, seen):
    """What they had of the pool is others' again; as long as they live it is theirs."""
    begun = Count("begun")

    def entry(ri, regs):
        begun.add()
        return 0

    def returned(ri, regs):
        begun.add()

    with ready(program, "killed", 3) as process, anyprobe.attach(process.pid) as session:
        rp = Kretprobe(Kprobe(symbol_name="hangs"), returned, entry, maxactive=3)
        assert register_kretprobe(rp) == 0
        children = [int(line.split()[0]) for line in fork(process, 3)]
        (call,) = (each for each in session.handling._calls if each.pool)
        keys = np.frombuffer(call.store.view(), dtype=np.uint64).reshape(-1, INSTANCE_BYTES // 8)[: call.pool, 0]
        look = partial(session.pump, 0.1) if seen else lambda: True
        wait_until(lambda: look() and total(begun).count + rp.nmissed == 3, "all are in the call")
        assert (total(begun).count, rp.nmissed, np.count_nonzero(keys)) == (3, 0, 3)
        for pid in children[:2]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: session.pump(0.1) and np.count_nonzero(keys) == 1, "what they had is free")
        assert session.pump(0.5)
        assert np.count_nonzero(keys) == 1
        os.kill(children[2], signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


def test_a_call_that_a_child_inherits_is_its_parents_alone(program):
    """It ends in both, and has data in the parent."""
    ends, strange = Count("ends"), Count("strange")

    def entry(ri, regs):
        ri.data.mark = 7
        return 0

    def returned(ri, regs):
        if ri.data.mark == 7:
            ends.add()
        else:
            strange.add()

    with ready(program, "inside", 4) as process, anyprobe.attach(process.pid) as session:
        rp = Kretprobe(Kprobe(symbol_name="held"), returned, entry, maxactive=8)
        assert register_kretprobe(rp) == 0
        process.communicate("\n", timeout=PATIENCE)
        session.wait(180)
        assert (total(ends).count, total(strange).count, rp.nmissed) == (4, 0, 0)
