"""``regs.sp`` is written in unsafe sessions; what cannot be written of ``regs`` is refused by name."""

import pytest

import anyprobe
from anyprobe import Count, HandlerError
from anyprobe.kprobes import Kprobe, register_kprobe, register_kprobes
from support.driver import build, started

pytestmark = pytest.mark.live


@pytest.fixture
def pushing():
    with started(build("pushing.c")) as running:
        yield running


@pytest.mark.parametrize("by", [8, 72, 4096])
def test_the_stack_pointer_is_moved_and_nothing_else(pushing, by):
    """By little, so that what is saved for the handler lies where the new stack begins, and by much; and back."""
    with anyprobe.attach(pushing.pid, unsafe=True) as session:
        seen = Count("seen", by=("distance",))

        def down(p, regs):
            regs.sp = regs.sp - p.by

        def up(p, regs):
            seen[regs.sp & 0xF].add()
            regs.sp += p.by

        probes = [Kprobe("pushes", offset=7, pre_handler=down), Kprobe("pushes", offset=0xF, pre_handler=up)]
        for kp in probes:
            kp.by = by
        assert register_kprobes(probes) == 0, [kp.error for kp in probes]
        counts = pushing.go(5)
        assert [kp.hits for kp in probes] == [250, 250] == [counts.calls["pushes"]] * 2
        assert sum(cell.count for cell in seen.result().entries.values()) == 250
        assert counts.calls["thousands"] == 0
        session.snapshot()
    pushing.go(1)
    pushing.finish()


def test_a_handler_does_what_the_instruction_would_have_done(pushing):
    """``pop rcx``, emulated for odd arguments: register, stack pointer and ``ip`` together."""
    with anyprobe.attach(pushing.pid, unsafe=True):

        def pop(p, regs):
            if regs.bx & 1:
                regs.cx = 1000
                regs.sp += 8
                regs.ip = p.addr + 1
                return 1
            return 0

        kp = Kprobe("pushes", offset=0xF, pre_handler=pop)
        assert register_kprobe(kp) == 0, kp.error
        counts = pushing.go(4)
        assert (counts.calls["thousands"], kp.hits) == (100, 200)
    pushing.finish()


@pytest.mark.parametrize("field", ["cs", "ss", "orig_ax"])
def test_segments_are_read_and_refused_by_name(pushing, field):
    with anyprobe.attach(pushing.pid, unsafe=True) as session:
        seen = Count("seen", by=("value",))
        handlers = {
            "cs": (lambda p, regs: seen[regs.cs].add(), _writing_cs),
            "ss": (lambda p, regs: seen[regs.ss].add(), _writing_ss),
            "orig_ax": (lambda p, regs: seen[regs.orig_ax].add(), _writing_orig_ax),
        }
        reads, writes = handlers[field]
        assert register_kprobe(Kprobe("pushes", offset=6, pre_handler=reads)) == 0
        with pytest.raises(HandlerError, match=rf"pt_regs\.{field} cannot be changed"):
            register_kprobe(Kprobe("pushes", offset=6, pre_handler=writes))
        pushing.go(1)
        session.snapshot()
        ((key, cell),) = seen.result().entries.items()
        assert (key[0], cell.count) == ({"cs": 0x33, "ss": 0x2B, "orig_ax": -1}[field], 50)
    pushing.finish()


def _writing_cs(p, regs):
    regs.cs = 0x23


def _writing_ss(p, regs):
    regs.ss = 0x23


def _writing_orig_ax(p, regs):
    regs.orig_ax = 1


def test_it_is_for_unsafe_sessions_and_in_front_of_instructions(pushing):
    def pre(p, regs):
        regs.sp += 8

    def post(p, regs, flags):
        regs.sp += 8

    with anyprobe.attach(pushing.pid), pytest.raises(HandlerError, match="unsafe=True"):
        register_kprobe(Kprobe("pushes", offset=6, pre_handler=pre))
    with anyprobe.attach(pushing.pid, unsafe=True), pytest.raises(HandlerError, match="in front of an instruction"):
        register_kprobe(Kprobe("pushes", offset=6, post_handler=post))
    pushing.go(1)
    pushing.finish()
