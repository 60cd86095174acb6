"""The code by which calls get an instance that all threads share, as it is disassembled."""

import subprocess
from pathlib import Path

import numpy as np

from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.handlers.facts import forget_instances
from anyprobe.splice.codegen.timing.instance_pool import SLOT_BYTES, emit_claim, emit_decline, emit_find


def disassembled(asm, tmp_path: Path):
    path = tmp_path / "code"
    path.write_bytes(asm.finish(0))
    listing = subprocess.run(
        ["objdump", "-D", "-b", "binary", "-m", "i386:x86-64", "-M", "intel", "--no-show-raw-insn", path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [" ".join(line.split("\t")[1].split()) for line in listing.splitlines() if ":\t" in line]


def test_an_instance_is_claimed_by_one_locked_instruction(tmp_path):
    asm = Assembler()
    emit_claim(asm, 0x7000_0000_0000, 3, tid_offset=0x2D0, may_read=False)
    lines = disassembled(asm, tmp_path)
    assert lines[0] == "test rbx,rbx"
    assert lines.count("movabs rcx,0x700000000000") == lines.count("mov r11d,0x3") == 2
    assert lines.count("lock cmpxchg QWORD PTR [rcx],rdx") == 1
    assert f"sub rcx,{-SLOT_BYTES:#x}".replace("-0x100", "0xffffffffffffff00") in lines
    assert "mov eax,DWORD PTR fs:0x2d0" in lines
    assert lines[-3:] == ["mov rax,QWORD PTR fs:0x10", "mov QWORD PTR [rcx+0x10],rax", "lea rdx,[rcx+0x38]"]
    assert not any("(bad)" in line for line in lines)


def test_the_words_of_the_others_are_read_by_the_routine_alone(tmp_path):
    asm = Assembler()
    asm.label("read")
    emit_claim(asm, 0x7000_0000_0000, 3, tid_offset=0x2D0, may_read=True)
    lines = disassembled(asm, tmp_path)
    assert lines.count("lock cmpxchg QWORD PTR [rcx],rdx") == 2
    assert lines.count("lock cmpxchg QWORD PTR [rcx+0x10],rdi") == 2
    assert [line for line in lines if line.startswith("call")] == ["call 0x0"]
    pushed = [line for line in lines if line.startswith(("push", "pop"))]
    assert len([line for line in pushed if line.startswith("push")]) == len(pushed) / 2


def test_a_call_that_ends_is_found_and_one_that_is_declined_given_back(tmp_path):
    asm = Assembler()
    emit_find(asm, 0x7000_0000_0000, 5)
    emit_decline(asm)
    lines = disassembled(asm, tmp_path)
    assert "cmp QWORD PTR [rcx],rdx" in lines
    assert not any("lock" in line for line in lines)
    assert lines[-2:] == ["mov QWORD PTR [rax-0x28],0x0", "mov QWORD PTR [rax-0x38],0x0"]


def test_instances_of_other_processes_are_left_alone(tmp_path):
    """Their stacks and threads are elsewhere: what is known of them is the number of the process in their key."""
    asm = Assembler()
    asm.label("read")
    emit_claim(asm, 0x7000_0000_0000, 3, tid_offset=0x2D0, may_read=True, forked=True)
    lines = disassembled(asm, tmp_path)
    at = lines.index("shr rdi,0x30")
    assert lines[at - 2 : at] == ["mov rdi,rax", "xor rdi,rdx"]
    assert lines[at + 1].startswith("jne")
    read = lines.index("call 0x0")
    assert at < read
    assert lines[read - 12 : read].count("shr rsi,0x10") == 1  # the address without the number
    assert "mov rax,QWORD PTR [rdx]" not in lines


def test_a_killed_child_s_instances_are_free():
    pool = np.zeros((8, SLOT_BYTES // 8), dtype=np.uint64)
    pool[2, :3] = (5 << 48 | 0x7FFF_0000_1000, 1, 0x7000)
    pool[3, :3] = (6 << 48 | 0x7FFF_0000_1000, 1, 0x7000)
    pool[4, :3] = (0x7FFF_0000_1000, 1, 0x7000)
    forget_instances(memoryview(pool).cast("B"), 5, pool=8)
    assert np.flatnonzero(pool[:, 0]).tolist() == np.flatnonzero(pool[:, 2]).tolist() == [3, 4]
