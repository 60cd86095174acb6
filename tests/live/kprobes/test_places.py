"""Where probes may be, all the places of a function, libraries that go away, and many probes at once."""

import errno
import subprocess

import pytest

import anyprobe
from anyprobe import Count, emit, i64
from anyprobe.kprobes import (
    KPROBE_FLAG_GONE,
    KPROBE_FLAG_OPTIMIZED,
    Jprobe,
    Kprobe,
    Kretprobe,
    debugfs,
    disable_kprobe,
    enable_kprobe,
    register_jprobe,
    register_jprobes,
    register_kprobe,
    register_kretprobe,
    unregister_kprobe,
    unregister_kprobes,
)
from support.driver import build, started

pytestmark = pytest.mark.live


@pytest.fixture
def library(tmp_path):
    source = tmp_path / "library.c"
    source.write_text("long inside_library(long n) { return n * 5 + 1; }\n")
    path = tmp_path / "library.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


def test_registered_probes_outlive_their_library(library):
    with started(build("reloaded.c"), env={"LIBRARY": str(library)}) as target, anyprobe.attach(target.pid) as session:
        kp = Kprobe(symbol_name="inside_library", module="library.so")
        rp = Kretprobe(Kprobe(symbol_name="inside_library"), lambda ri, regs: 0)
        assert register_kprobe(kp) == 0
        assert register_kretprobe(rp) == 0
        target.go(2)
        assert (kp.hits, rp.kp.hits) == (20, 20)
        target.go(1)
        session.snapshot()
        assert kp.flags & rp.kp.flags & KPROBE_FLAG_GONE
        assert all("[GONE]" in str(line) for line in debugfs.listing())
        assert disable_kprobe(kp) == 0
        assert enable_kprobe(kp) == -errno.EINVAL
        assert "gone" in kp.error
        target.go(3)
        assert (kp.hits, rp.kp.hits) == (20, 20)
        unregister_kprobe(kp)
        again = Kprobe(symbol_name="inside_library")
        assert register_kprobe(again) == 0
        target.go(1)
        assert again.hits == 10
        target.finish()


@pytest.mark.parametrize("function", ["stepped", "chosen", "shapes", "recursive", "leaves_from_below", "caller_of"])
def test_every_offset_of_a_function(target, session, function):
    """The kernel's kprobe_insn_boundary and kprobe_opt_types: what is accepted runs, all of it at once."""
    probes = []
    for offset in range(256):
        kp = Kprobe(symbol_name=function, offset=offset)
        if register_kprobe(kp) == 0:
            probes.append(kp)
    assert probes
    assert any(kp.flags & KPROBE_FLAG_OPTIMIZED for kp in probes)
    target.go(2)
    assert probes[0].hits > 0
    unregister_kprobes(probes)
    target.go(1)
    target.finish()


def test_inlined_instances_are_probed_on_request(target, session):
    seen = Count("seen", by=("at",))

    def pre(p, regs):
        seen[regs.ip].add()
        return 0

    assert register_kprobe(Kprobe(symbol_name="folded", pre_handler=pre)) == -errno.ENOENT
    kp = Kprobe(symbol_name="folded", pre_handler=pre, inlined=True)
    assert register_kprobe(kp) == 0
    places = debugfs.listing()
    assert {line.symbol for line in places} == {"folds", "folds_too"}
    assert len(places) == 3
    target.go(4)
    assert {key[0] for key in seen.result().entries} == {line.address for line in places}
    assert kp.hits == sum(cell.count for cell in seen.result().entries.values()) == 12
    unregister_kprobe(kp)
    assert debugfs.listing() == []
    target.go(1)
    target.finish()


def test_jprobes_need_the_first_instruction_and_share_it(target, session):
    seen = Count("seen", by=("which",))

    def first(n: i64):
        seen[1].add()

    def second(n: i64):
        if n > 50:
            seen[2].add()

    for offset in range(1, 9):  # whether an instruction begins there or not
        assert register_jprobe(Jprobe(Kprobe(symbol_name="chosen", offset=offset), first)) == -errno.EINVAL
    assert register_jprobes([Jprobe(Kprobe(symbol_name="chosen"), each) for each in (first, second)]) == 0
    target.go(1)
    target.finish()
    assert {key[0]: cell.count for key, cell in seen.result().entries.items()} == {1: 100, 2: 49}


def test_registers_are_equal_before_and_after(target, session):
    """BPF's uprobe_regs_equal: what the handler sees is what the program had, and the program has it afterwards."""

    def pre(p, regs):
        emit(
            "regs", ax=regs.ax, bx=regs.bx, cx=regs.cx, dx=regs.dx, si=regs.si, di=regs.di, bp=regs.bp, r8=regs.r8,
            r9=regs.r9, r10=regs.r10, r11=regs.r11, r12=regs.r12, r13=regs.r13, r14=regs.r14, r15=regs.r15,
            cs=regs.cs, ss=regs.ss,
        )  # fmt: skip
        return 0

    assert register_kprobe(Kprobe(symbol_name="patterned", offset=PATTERNED, pre_handler=pre)) == 0
    target.go(1)
    target.finish()
    (row,) = session.records(final=True)["regs"]
    names = ("ax", "bx", "cx", "dx", "si", "di", "bp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15")
    assert [int(row[name]) for name in names] == [0x0101010101010101 * (number + 1) for number in range(15)]
    assert (row["cs"], row["ss"]) == (0x33, 0x2B)


PATTERNED = 0xA0
"""Where the registers of ``patterned`` are set: behind pushes of 10 bytes together, and constants of 10 bytes each."""
