"""Kprobes and djprobes that are splices: the six steps of the original's proposal, while the kernel is busy."""

import errno
import os
import signal
import subprocess
import time
from contextlib import closing

import pytest

import anyprobe
from anyprobe import Count
from anyprobe.binary.kernel.addresses import BIAS
from anyprobe.isa.decode import Flow, decode_range
from anyprobe.kprobes import (
    KPROBE_FLAG_DISABLED,
    KPROBE_FLAG_OPTIMIZED,
    Djprobe,
    Jprobe,
    Kprobe,
    Kretprobe,
    current,
    debugfs,
    disable_kprobe,
    disable_kretprobe,
    enable_kprobe,
    enable_kretprobe,
    register_djprobe,
    register_djprobes,
    register_jprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    regs_return_value,
    unregister_djprobe,
    unregister_djprobes,
    unregister_kprobe,
    unregister_kretprobe,
)
from anyprobe.probes.providers.kernel import code as code_of
from anyprobe.target.kernel import symbols
from support import checked_work
from support.in_kernel import writes_of
from support.kernel_patches import function, text

GETPPID, GETPPID_NUMBER = "__do_sys_getppid", "110"
JUMP, HITS = 5, 50
NEEDED = bytes.fromhex("660f1f00"), bytes.fromhex("0f1f440000")
"""What the kernel makes of an ``endbr64`` that nothing leads to, and what ftrace uses."""
SIZE, TIMES, ROUNDS = 777, 50, 3


@pytest.fixture
def session(splicing):
    with splicing:  # the one that is meant where none is named
        yield splicing


@pytest.fixture
def write():
    with writes_of(SIZE, TIMES) as run:
        yield run


def own_part(name):
    """Return the instructions of a function behind what the kernel itself needs at its beginning."""
    body = function(name)
    first = next(index for index, insn in enumerate(body) if not insn.is_endbr and insn.raw not in NEEDED)
    return body[first:]


def region(body, index):
    """Return the whole instructions that a jump at one of them takes."""
    end = index
    while body[end].end - body[index].address < JUMP:
        end += 1
    return body[index : end + 1]


def test_the_six_steps_lose_no_hit_under_load_and_leave_the_text_as_it_was(session, system_calls, folder):
    body = own_part(GETPPID)  # of which each call runs all
    displaced = next(found for at in range(len(body)) if is_straight(found := region(body, at)) and len(found) > 1)
    place, size = displaced[0].address, displaced[-1].end - displaced[0].address
    before = text(place, size)
    calls, threads, seen, of_others = 2000, 2, Count("seen"), 0

    def handler(djp, regs):
        seen.add()

    kept, others = Djprobe(handler=handler), [Djprobe(place, size, handler) for _ in range(2)]
    first = Djprobe(place, size)
    assert register_djprobe(first) == 0, first.kp.error  # the kernel is analysed then
    unregister_djprobe(first)
    with checked_work.going_on(folder):
        assert register_djprobe(kept, place, size, strict_djprobe=True) == 0, kept.kp.error
        with subprocess.Popen([system_calls, GETPPID_NUMBER, str(1 << 40), str(threads)]) as calling:
            try:
                for _ in range(ROUNDS):
                    # while the other processors run the place, and tasks sleep all over the kernel: steps 2 to 5
                    assert register_djprobes(others) == 0, [each.kp.error for each in others]
                    hits = kept.kp.hits
                    while kept.kp.hits < hits + HITS:
                        os.sched_yield()
                    unregister_djprobes(others)
                    assert all(each.kp.hits >= HITS for each in others)
                    of_others += sum(each.kp.hits for each in others)
            finally:
                calling.send_signal(signal.SIGKILL)
        hits = kept.kp.hits
        subprocess.run([system_calls, GETPPID_NUMBER, str(calls), str(threads)], check=True)
        assert kept.kp.hits == hits + calls * threads
        # what is there in the end: the jump whole, step 6, and where it leads the handler before the copies, step 1
        (jump,) = decode_range(text(place, JUMP), place)
        assert jump.flow is Flow.JUMP
        patch = decode_range(text(jump.target, 256), jump.target)
        copies = [insn.raw for insn in patch]
        assert any(copies[at : at + len(displaced)] == [insn.raw for insn in displaced] for at in range(len(copies)))
        unregister_djprobe(kept)
    assert text(place, size) == before
    os.getppid()
    assert kept.kp.hits == hits + calls * threads
    assert seen.result().entries[()].count == kept.kp.hits + of_others
    assert kept.nmissed == 0


@pytest.mark.thorough
def test_a_djprobe_sees_registers_and_several_share_a_jump(session, write):
    displaced = region(own_part("vfs_write"), 0)
    place, size = displaced[0].address, displaced[-1].end - displaced[0].address
    first, second = Count("first"), Count("second")

    def handler(djp, regs):
        if regs.dx == SIZE:
            first.add()

    def again(djp, regs):
        if regs.dx == SIZE:
            second.add()

    one, other, counted = Djprobe(handler=handler), Djprobe(handler=again), Djprobe()
    assert register_djprobe(one, place, size) == 0, one.kp.error
    assert one.kp.flags & KPROBE_FLAG_OPTIMIZED
    jump = text(place, JUMP)
    assert register_djprobe(other, place, size, strict_djprobe=True) == 0, other.kp.error
    assert register_djprobe(counted, place) == 0, counted.kp.error
    assert text(place, 1) == jump[:1]
    write()
    assert (first.result().entries[()].count, second.result().entries[()].count) == (TIMES, TIMES)
    assert counted.kp.hits >= TIMES
    unregister_djprobe(one)
    write()
    assert (first.result().entries[()].count, second.result().entries[()].count) == (TIMES, 2 * TIMES)
    lines = debugfs.listing()
    assert [(each.kind, each.symbol, each.flags) for each in lines] == [("k", "vfs_write", ("OPTIMIZED",))] * 2


def first_that(names, is_wanted):
    """Return the region of the first place in some functions that is as wanted, and where it is."""
    for name in names:
        start = symbols.running().named(name)[0].address
        code = code_of.running(symbols.running()).module(symbols.KERNEL).code.function_at(start - BIAS)
        inner = {target + BIAS for target in code.jump_targets}
        body = own_part(name)
        for index in range(len(body) - JUMP):
            found = region(body, index)
            if is_wanted(found, inner):
                return found[0].address, found[-1].end - found[0].address
    raise AssertionError(names)


def is_straight(found):
    return all(insn.flow is Flow.NEXT and not insn.iced.is_ip_rel_memory_operand for insn in found)


def into(found, targets):
    return any(found[0].address < each < found[0].address + JUMP for each in targets)


ASSUMPTIONS = {
    "assumption ii:": lambda found, targets: found[0].flow is Flow.JCC and not into(found, targets),
    "assumption iii:": lambda found, targets: found[0].flow is Flow.CALL and not into(found, targets),
    "assumption iv:": lambda found, targets: is_straight(found) and into(found, targets),
}


@pytest.mark.thorough
@pytest.mark.parametrize("said", ASSUMPTIONS)
def test_what_the_original_assumes_is_asked_for_by_name(session, said):
    place, size = first_that(("vfs_write", "vfs_read", "ksys_read", "do_filp_open", "__schedule"), ASSUMPTIONS[said])
    djp = Djprobe()
    assert register_djprobe(djp, place, size, strict_djprobe=True) == -errno.EINVAL
    assert said in djp.kp.error
    assert djp.kp.registration is None
    assert not session.probes


@pytest.mark.thorough
def test_djprobes_that_overlap_and_places_that_are_none(session):
    body = own_part("vfs_write")
    index = next(at for at in range(len(body)) if is_straight(region(body, at)) and len(region(body, at)) > 1)
    place = body[index].address
    djp = Djprobe()
    assert register_djprobe(Djprobe(), place, 0, strict_djprobe=True) == 0
    assert register_djprobe(djp, body[index + 1].address, 0, strict_djprobe=True) == -errno.EEXIST
    assert "overlap" in djp.kp.error
    assert register_djprobe(djp, body[index + 1].address) == -errno.EEXIST, "where there is no more room"
    assert register_djprobe(djp, place, 4) == -errno.EINVAL
    long = next(insn for insn in body if len(insn.raw) > 1)
    assert register_djprobe(djp, long.address + 1, 0) == -errno.EILSEQ
    assert "assumption i:" in djp.kp.error
    assert register_djprobe(djp, place, 0, strict_djprobe=True) == 0, djp.kp.error


def test_kprobes_with_handlers_before_and_after_an_instruction(session, write):
    before, after = Count("before", by=("pid",)), Count("after", by=("pid",))

    def pre(p, regs):
        if regs.dx == SIZE:
            before.add(key=(current.tgid,))
        return 0

    def post(p, regs, flags):
        if regs.dx == SIZE:
            after.add(key=(current.tgid,))

    kp, plain = Kprobe(symbol_name="vfs_write", pre_handler=pre, post_handler=post), Kprobe(symbol_name="vfs_write")
    assert register_kprobes([kp, plain]) == 0, kp.error or plain.error
    write()
    pid = (os.getpid(),)
    assert [each.result().entries[pid].count for each in (before, after)] == [TIMES, TIMES]
    assert min(kp.hits, plain.hits) >= TIMES
    assert kp.nmissed == 0
    assert kp.flags & KPROBE_FLAG_OPTIMIZED
    assert disable_kprobe(kp) == 0
    assert kp.flags & KPROBE_FLAG_DISABLED
    assert [each.flags for each in debugfs.listing()] == [("DISABLED",), ("OPTIMIZED",)]
    write()
    assert before.result().entries[pid].count == TIMES
    assert enable_kprobe(kp) == 0, kp.error
    write()
    assert [each.result().entries[pid].count for each in (before, after)] == [2 * TIMES, 2 * TIMES]
    unregister_kprobe(kp)
    hits = kp.hits
    write()
    assert kp.hits == hits >= 2 * TIMES
    assert kp.addr is None


@pytest.mark.thorough
def test_what_is_refused_has_the_kernels_error_numbers(session):
    def sets(p, regs):
        regs.di = 4
        return 0

    def bad(number, said, **fields):
        probe = Kprobe(**fields)
        assert register_kprobe(probe) == -number, probe.error
        assert said in probe.error

    bad(errno.EACCES, "sets sets regs.di", symbol_name="vfs_write", pre_handler=sets)
    bad(errno.ENOENT, "vfs_write", symbol_name="vfs_wriet")
    bad(errno.EINVAL, "not-to-be-instrumented", symbol_name="exc_page_fault")
    bad(errno.EILSEQ, "not an instruction boundary", symbol_name="vfs_write", offset=6)
    kp = Kprobe(symbol_name="vfs_write")
    assert register_kprobes([kp, Kprobe(symbol_name="exc_page_fault")]) == -errno.EINVAL
    assert kp.registration is None
    with closing(anyprobe.kernel(mechanism="kprobe")) as other:  # which is not the one that is meant
        (set_there,) = other.count(
            f"kernel::{GETPPID}:{own_part(GETPPID)[1].address - function(GETPPID)[0].address:#x}"
        )
        assert set_there.armed
        bad(errno.EBUSY, "kprobe", symbol_name=GETPPID)
    assert not session.probes


@pytest.mark.thorough
def test_jprobes_and_kretprobes_share_a_call(session, write):
    entered, left, wrong = Count("entered"), Count("left"), Count("wrong")

    def entry(file, buf, count):
        if count == SIZE:
            entered.add()

    def opened(ri, regs):
        ri.data.size = regs.dx
        return 0

    def handler(ri, regs):
        if ri.data.size == SIZE:
            left.add()
            if regs_return_value(regs) != SIZE:
                wrong.add()

    jp = Jprobe(kp=Kprobe(symbol_name="vfs_write"), entry=entry)
    rp = Kretprobe(kp=Kprobe(symbol_name="vfs_write"), handler=handler, entry_handler=opened)
    assert register_jprobe(jp) == 0, jp.kp.error
    assert register_kretprobe(rp) == 0, rp.kp.error
    write()
    assert [each.result().entries[()].count for each in (entered, left)] == [TIMES, TIMES]
    assert () not in wrong.result().entries
    assert rp.nmissed == 0
    assert rp.kp.hits >= TIMES
    unregister_kretprobe(rp)
    write()
    assert [each.result().entries[()].count for each in (entered, left)] == [2 * TIMES, TIMES]


@pytest.mark.thorough
def test_maxactive_bounds_the_calls_that_are_followed(session):
    followed = Count("followed")

    def left(ri, regs):
        followed.add()

    rp = Kretprobe(kp=Kprobe(symbol_name="do_nanosleep"), handler=left, maxactive=1)
    assert register_kretprobe(rp) == 0, rp.kp.error
    sleepers = [subprocess.Popen(["sleep", "1"]) for _ in range(3)]
    assert [each.wait() for each in sleepers] == [0, 0, 0]
    seen = followed.result().entries[()].count
    assert seen >= 1
    assert rp.nmissed >= 1
    assert seen + rp.nmissed >= 3
    assert rp.kp.hits == seen
    # a call that is under way when the probe is disabled is not followed, and takes nobody's place
    hits = rp.kp.hits
    with subprocess.Popen(["sleep", "1000"]) as sleeping:
        while rp.kp.hits == hits:
            time.sleep(0.01)
        assert disable_kretprobe(rp) == enable_kretprobe(rp) == 0
        subprocess.run(["sleep", "0.1"], check=True)
        sleeping.kill()
    assert followed.result().entries[()].count > seen


def test_without_splices_there_are_no_djprobes(loaded):
    with anyprobe.kernel():
        djp = Djprobe(addr=5, size=5)
        assert register_djprobe(djp) == -errno.EOPNOTSUPP
    assert "mechanism='splice'" in djp.kp.error


def test_where_the_stack_is_another_tasks_there_are_no_kprobes(loaded):
    def handler(given, regs):
        pass

    def leave(ri, regs):
        pass

    for mechanism in (None, "splice"):
        with anyprobe.kernel(mechanism=mechanism):
            kp, inside = (
                Kprobe(symbol_name="__switch_to", pre_handler=handler),
                Kprobe(symbol_name="__switch_to", offset=4),
            )
            rp = Kretprobe(kp=Kprobe(symbol_name="__switch_to"), handler=leave)
            assert [register_kprobe(kp), register_kprobe(inside), register_kretprobe(rp)] == [-errno.EINVAL] * 3
            assert "another" in kp.error
            assert "another" in rp.kp.error


def test_a_kretprobe_by_splices_tells_where_the_call_returns_to(session):
    callers = {"entry": Count("entries", by=("address",)), "return": Count("returns", by=("address",))}
    entries, returns = callers.values()

    def enter(ri, regs):
        entries.add(key=(ri.ret_addr,))

    def leave(ri, regs):
        returns.add(key=(ri.ret_addr,))

    rp = Kretprobe(kp=Kprobe(symbol_name="__do_sys_getppid"), handler=leave, entry_handler=enter)
    assert register_kretprobe(rp) == 0, rp.kp.error
    os.getppid()
    found = session.snapshot()
    for name in ("entries", "returns"):
        ((address,),) = found.aggregation(name).entries
        around = symbols.running().containing(int(address, 16) if isinstance(address, str) else address)
        assert around is not None
        assert "sys" in around.name
