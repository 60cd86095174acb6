"""The processor itself as the oracle: an instruction and its displaced copies run from equal random machine states.

Run as a process of its own: takes the world's address, the number of states, a seed and how to spoil copies, reads a
JSON list of instructions (hex) from standard input and writes one JSON line for each: its verdict and a detail.
"""

import json
import os
import random
import signal
import struct
import subprocess
import sys

from iced_x86 import Code

from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Flow, decode_one
from anyprobe.isa.relocate import displace
from support.displaced.lengths import displaced_length
from support.displaced.machine import DATA, FAULTED, ORIGINAL, Machine
from support.displaced.states import States, memory_operand, prepared

WORLDS = {"low": 0x3000_0000, "high": 0x5000_9000_0000, "higher": 0x7000_1234_0000}
"""Below 2 GiB; where the low half of a return address is negative as a signed number; and where it is not."""
NOT_RUN = {
    Code.SYSENTER: "enters the kernel without a way back",
    Code.VMMCALL: "asks the hypervisor for something",
    Code.VMCALL: "asks the hypervisor for something",
    Code.VMGEXIT: "asks the hypervisor for something",
}
SECONDS_PER_INSTRUCTION = 5
WRONG = {
    "one byte further": lambda copy: copy[:3] + bytes([copy[3] + 1 & 0xFF]) + copy[4:],
    "another flag": lambda copy: copy + b"\xf5",  # cmc
    "another register": lambda copy: copy + b"\x45\x89\xff",  # mov r15d, r15d
    "another vector register": lambda copy: copy + b"\xc5\x78\x28\xff",  # vmovaps xmm15, xmm7
    "another mask register": lambda copy: copy + b"\xc4\xe1\xf8\x44\xff",  # knotq k7, k7
    "another x87 control word": lambda copy: copy + b"\xdb\xe3",  # fninit
    "below the stack pointer": lambda copy: copy + b"\x48\x89\x44\x24\x80",  # mov [rsp-0x80], rax
    "another condition": lambda copy: copy[:1] + bytes([copy[1] ^ 1]) + copy[2:],
    "another return address": lambda copy: copy[:1] + bytes([copy[1] ^ 1]) + copy[2:],
    "no fault": lambda copy: b"\x66\x90",  # xchg ax, ax
    "another fault": lambda copy: b"\xcc\x90",  # int3; nop
}
"""Ways to spoil a copy, all of which the oracle must notice."""


class DifferentError(Exception):
    """A copy does not do what its original does."""


class Oracle:
    def __init__(self, machine, rng, states, spoil=bytes):
        self.machine, self.states, self.spoil = machine, states, spoil
        self.random = States(machine, rng)

    def verdict(self, raw):
        """Return (verdict, detail) about one instruction."""
        address = self.machine.base + ORIGINAL
        insn = decode_one(raw, address)
        if isinstance(insn, Refusal):
            return "refused", insn.detail
        copy = displace(insn, address)
        if isinstance(copy, Refusal):
            return "refused", copy.detail
        if insn.iced.code in NOT_RUN:
            return "not run", NOT_RUN[insn.iced.code]
        insn = decode_one(prepared(insn.raw, self.machine.base), address)
        try:
            return self.run(insn)
        except DifferentError as difference:
            return "different", f"{insn.text}: {difference}"

    def run(self, insn):
        machine = self.machine
        taken = insn.target - machine.base if insn.target is not None else ORIGINAL + 0x1000
        machine.place(insn.raw, machine.base + taken if taken != ORIGINAL + insn.length else None)
        copies = self.copies(insn)
        ends = set()
        for _ in range(self.states):
            image = self.random.image(insn, taken)
            for place, copy in copies.items():
                machine.place_copy(place, copy, insn.end)
                first = self.same(insn, image, range(place, place + len(copy)))
            ends.add(first.signal)
        if ends == {signal.SIGILL}:
            return "not on this processor", ""
        names = sorted(signal.Signals(end).name for end in ends if end)
        return ("ran" if 0 in ends else "always faulted"), " ".join(names)

    def same(self, insn, image, where):
        """Raise unless a copy comes to the same as its original; return what that is.

        A clock's upper half may change between any two runs, so what differs has to do so each time.
        """
        for last in (False, False, True):
            first, again = self.machine.run(insn.address, image), self.machine.run(insn.address, image)
            try:
                compare(insn, first, again, self.machine.run(where.start, image), where, self.machine.base)
            except DifferentError:
                if last:
                    raise
            else:
                break
        return first

    def copies(self, insn):
        """Return the copies by place; only what is relative may be refused, and only out of reach."""
        found = {}
        relative = insn.target is not None or insn.iced.is_ip_rel_memory_operand
        for place in self.machine.copies:
            copy = displace(insn, place)
            if isinstance(copy, bytes):
                if len(copy) != displaced_length(insn):
                    raise DifferentError(f"{len(copy)} bytes at {place:#x}, {displaced_length(insn)} elsewhere")
                found[place] = self.spoil(copy)
            elif not relative or abs(place - insn.address) < 1 << 31 or "out of reach" not in copy.detail:
                raise DifferentError(f"refused at {place:#x}: {copy.detail}")
        return found


def compare(insn, first, again, other, where, base):
    """Raise unless the copy's outcome is the original's; what two runs of that do not share is left out."""
    if (first.which, first.signal, first.code) != (other.which, other.signal, other.code):
        raise DifferentError(
            f"left by {first.which}, signal {first.signal}; copy by {other.which}, signal {other.signal}"
        )
    pushed = first.which == FAULTED and insn.flow is Flow.INDIRECT_CALL and memory_operand(insn.iced)
    if first.which == FAULTED:
        compare_faults(insn, first, other, where)
    regs, data = list(other.regs), other.data
    if pushed and regs[4] == first.regs[4] - 8:
        # By design, a load that faults in a copied call does so with the return address already pushed.
        regs[4] += 8
        at = regs[4] - 8 - base - DATA
        if data[at : at + 8] != struct.pack("<Q", insn.end):
            raise DifferentError("pushed something else than its return address")
        data = data[:at] + first.data[at : at + 8] + data[at + 8 :]
    if insn.iced.code == Code.SYSCALL:
        regs[1] = first.regs[1]  # the copy's address, by design
    for number, (left, right, volatile) in enumerate(zip(first.regs, regs, again.regs, strict=True)):
        if left != right and left == volatile:
            raise DifferentError(f"register {number}: {left:#x}, copy {right:#x}")
    if first.flags != other.flags and first.flags == again.flags:
        raise DifferentError(f"flags: {first.flags:#x}, copy {other.flags:#x}")
    if first.fs != other.fs:
        raise DifferentError("fs")
    if first.data != data and first.data == again.data:
        at = next(at for at, (left, right) in enumerate(zip(first.data, data, strict=True)) if left != right)
        raise DifferentError(f"memory at data + {at:#x}")
    compare_vectors(first, other, where, insn.address)


def compare_faults(insn, first, other, where):
    """Compare where and about what both faulted."""
    as_original = {address: insn.address + address - where.start for address in (*where, where.stop)}
    single = where.stop - where.start == insn.length
    rip = as_original.get(other.rip, other.rip)
    if rip != first.rip and (single or rip not in as_original.values() or first.rip != insn.address):
        raise DifferentError(f"faulted at {first.rip:#x}, copy at {other.rip:#x}")
    if first.address != other.address and first.address != as_original.get(other.address):
        raise DifferentError(f"faulted about {first.address:#x}, copy about {other.address:#x}")


def compare_vectors(first, other, where, address):
    """Compare the xsave areas; the last x87 instruction is the copy, by design."""
    left, right = bytearray(first.vectors), bytearray(other.vectors)
    if int.from_bytes(left[8:16], "little") == address and int.from_bytes(right[8:16], "little") in where:
        right[8:16] = left[8:16]
    if left != right:
        at = next(at for at in range(len(left)) if left[at] != right[at])
        raise DifferentError(f"vector state at xsave area + {at}")


def judge(instructions, world, states, seed, wrong="", oracle="support.displaced.oracle"):
    """Return {hex: (verdict, detail)}, each world in a process of its own, which may die of what it runs."""
    verdicts, rest = {}, list(instructions)
    while rest:
        process = subprocess.run(
            [sys.executable, "-m", oracle, hex(WORLDS[world]), str(states), str(seed), wrong],
            input=json.dumps(rest), capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        answers = [json.loads(line) for line in process.stdout.splitlines() if line.endswith("]")]
        verdicts |= {code: (verdict, detail) for code, verdict, detail in answers}
        if process.returncode == 0:
            assert len(answers) == len(rest), process.stderr[-500:]
            return verdicts
        if len(answers) == len(rest):
            raise RuntimeError(f"died at its end: {process.stderr[-500:]}")
        if not answers and rest and rest[0] in verdicts:
            raise RuntimeError(process.stderr[-500:])
        verdicts[rest[len(answers)]] = "different", f"died: {process.returncode} {process.stderr[-300:]}"
        rest = rest[len(answers) + 1 :]
    return verdicts


def serve(kind):
    """Answer the questions on standard input."""
    base, states, seed = int(sys.argv[1], 16), int(sys.argv[2]), int(sys.argv[3])
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[os.getpid() % len(processors)]})  # what tells them apart stays the same
    oracle = kind(Machine(base), random.Random(seed), states, WRONG.get(sys.argv[4], bytes))
    for code in json.load(sys.stdin):
        signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_INSTRUCTION)  # of processor time
        signal.alarm(30 * SECONDS_PER_INSTRUCTION)
        verdict, detail = oracle.verdict(bytes.fromhex(code))
        print(json.dumps([code, verdict, detail]), flush=True)


if __name__ == "__main__":
    serve(Oracle)
