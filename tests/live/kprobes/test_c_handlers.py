"""Handlers in C for kprobes, and handlers that run at the same time on several threads."""

import errno

import pytest

from anyprobe import Count, CSource
from anyprobe.kprobes import (
    Jprobe,
    Kprobe,
    Kretprobe,
    register_jprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
)

pytestmark = pytest.mark.live
ADDING = "int handler(struct anyprobe_ctx *ctx) { unsigned long *words = ctx->state; %s return 0; }"
ARGUMENT = ADDING % "anyprobe_add(words, 1); anyprobe_add(words + 1, ctx->rdi);"
RESULT = ADDING % "anyprobe_add(words, 1); anyprobe_add(words + 1, ctx->rax);"
MEETING = ADDING % (
    "unsigned long inside = anyprobe_add(words, 1) + 1;"
    "for (int patience = 0; patience < 200000 && inside < 2 && !__atomic_load_n(words + 1, __ATOMIC_RELAXED);"
    "     patience++)"
    "    inside = __atomic_load_n(words, __ATOMIC_RELAXED);"
    "if (inside >= 2) anyprobe_add(words + 1, 1);"
    "anyprobe_add(words, -1ul); anyprobe_add(words + 2, 1);"
)
"""Waits for another thread to be in the handler, too, until that was seen once."""
CALLS = 100
SUM = CALLS * (CALLS - 1) // 2


def test_pre_post_and_return_handlers_in_c(target, session):
    pre, post, entry, returned, jump = (
        CSource(text, state=16) for text in (ARGUMENT, RESULT, ARGUMENT, RESULT, ARGUMENT)
    )
    kp = Kprobe(symbol_name="chosen", offset=5, pre_handler=pre, post_handler=post)
    assert register_kprobe(kp) == 0, kp.error
    rp = Kretprobe(Kprobe(symbol_name="chosen"), returned, entry)
    assert register_kretprobe(rp) == 0, rp.kp.error
    jp = Jprobe(Kprobe(symbol_name="chosen"), jump)
    assert register_jprobe(jp) == 0, jp.kp.error
    target.go(2)
    target.finish()
    results = 2 * (SUM + 108 * (CALLS - 1) + 8)
    assert pre.words() == entry.words() == jump.words() == [2 * CALLS, 2 * SUM]
    assert post.words() == [2 * CALLS, 2 * (SUM + 7 * CALLS)]
    assert returned.words() == [2 * CALLS, results]
    assert (kp.hits, kp.nmissed) == (2 * CALLS, 0)


def test_an_entry_handler_in_c_beside_a_return_handler_in_python(target, session):
    entry, returns = CSource(ARGUMENT, state=16), Count("returns")

    def handler(ri, regs):
        returns.add()

    rp = Kretprobe(Kprobe(symbol_name="chosen"), handler, entry, maxactive=2)
    assert register_kretprobe(rp) == 0, rp.kp.error
    target.go(1)
    target.finish()
    assert entry.words() == [CALLS, SUM]
    assert (returns.result().total.count, rp.nmissed) == (CALLS, 0)


@pytest.mark.parametrize("more", [{"maxactive": 1}, {"data_size": 8}, {"entry_handler": lambda ri, regs: 0}])
def test_a_return_handler_in_c_has_no_instance(session, more):
    rp = Kretprobe(Kprobe(symbol_name="chosen"), CSource(RESULT, state=16), **more)
    assert register_kretprobe(rp) == -errno.EOPNOTSUPP
    assert "no instance" in rp.kp.error


def test_fault_handlers_are_in_python(session):
    kp = Kprobe(symbol_name="chosen", offset=5, fault_handler=CSource(RESULT, state=16))
    assert register_kprobe(kp) == -errno.EOPNOTSUPP
    assert "Python" in kp.error


def test_handlers_run_at_the_same_time_on_several_threads(target, session):
    meeting, seen = CSource(MEETING, state=24), Count("seen")

    def beside(p, regs):
        seen.add()

    probes = [Kprobe(symbol_name="stepped", pre_handler=each) for each in (meeting, beside)]
    assert register_kprobes(probes) == 0, [kp.error for kp in probes]
    target.go(2)
    target.finish()
    inside, together, calls = meeting.words()
    assert inside == 0
    assert together > 0
    assert calls == seen.result().total.count == 2 * 4 * 1000
    assert [kp.nmissed for kp in probes] == [0, 0]
