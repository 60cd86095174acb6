"""Runs instructions natively, the original and its displaced copy, from the same random states, and compares.

Run as a process of its own, since a wrong copy may do anything: reads a JSON list of cases (hex bytes) from standard
input, prints a JSON list of differences. One mapping holds everything, so that all of it is within reach.
"""

import ctypes
import json
import mmap
import random
import struct
import sys

from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import decode_one
from anyprobe.isa.relocate import displace

SIZE = 1 << 20
ORIGINAL, COPY, ENTER, STUBS = 0x10000, 0x40000, 0x1000, 0x2000
STATE, DATA, STACK = 0x80000, 0x90000, 0xC0000
HARNESS_RSP, WHICH, FLAGS, REGS = STATE + 0x200, STATE + 0x208, STATE + 0x210, STATE
STATUS = 0x8D5  # OF SF ZF AF PF CF
ROUNDS = 24


class Machine:
    def __init__(self):
        # Not executable by accident: this process exists only to run generated code.
        self.memory = mmap.mmap(-1, SIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.enter = ctypes.CFUNCTYPE(None)(self.base + ENTER)

    def put(self, offset, content):
        self.memory[offset : offset + len(content)] = content

    def rel(self, end, target):
        return struct.pack("<i", target - end)

    def build_entry(self, start):
        """Save what the caller needs, load every register and flag from the state, jump to ``start``."""
        at, out = ENTER, b""
        for push in ("53", "55", "4154", "4155", "4156", "4157"):  # push rbx, rbp, r12-r15
            out += bytes.fromhex(push)
        out += b"\x48\x89\x25" + self.rel(at + len(out) + 7, HARNESS_RSP)  # mov [harness rsp], rsp
        out += b"\xff\x35" + self.rel(at + len(out) + 6, FLAGS) + b"\x9d"  # push [flags]; popfq
        for number in range(16):
            out += self.move(0x8B, number, at + len(out))  # mov reg, [state]
        out += b"\xe9" + self.rel(at + len(out) + 5, start)  # jmp start
        self.put(at, out)

    def move(self, opcode, number, at):
        rex = 0x48 | (number >> 3) << 2
        return bytes([rex, opcode, 5 | (number & 7) << 3]) + self.rel(at + 7, REGS + 8 * number)

    def build_stub(self, offset, identity):
        """Store every register and flag, note which stub it was, return to the caller."""
        out = b""
        for number in range(16):
            out += self.move(0x89, number, offset + len(out))  # mov [state], reg
        out += b"\x48\x8b\x25" + self.rel(offset + len(out) + 7, HARNESS_RSP)  # mov rsp, [harness rsp]
        out += b"\x9c\x8f\x05" + self.rel(offset + len(out) + 7, FLAGS)  # pushfq; pop [flags]
        out += b"\xc7\x05" + self.rel(offset + len(out) + 10, WHICH) + struct.pack("<i", identity)
        out += bytes.fromhex("415f415e415d415c5d5bfcc3")  # pop r15-r12, rbp, rbx; cld; ret
        self.put(offset, out)


def run(machine, start, image):
    machine.put(STATE, image["state"])
    machine.put(DATA, image["data"])
    machine.put(STACK, image["stack"])
    machine.build_entry(start)
    machine.enter()
    memory = machine.memory
    flags = struct.unpack_from("<Q", memory, FLAGS)[0] & (STATUS | 0x400)
    return {
        "regs": list(struct.unpack_from("<16Q", memory, REGS)),
        "flags": flags,
        "which": struct.unpack_from("<i", memory, WHICH)[0],
        "data": memory[DATA : DATA + 0x8000],
        # Below rsp nothing is promised but the red zone, which no original here uses beyond what it pushes.
        "stack": memory[STACK + 0x7000 : STACK + 0x10000],
    }


def random_image(machine, rng, taken):
    base = machine.base
    regs = [
        rng.getrandbits(64) if rng.random() < 0.7 else rng.choice([0, 1, 2**31, 2**63, 2**64 - 1]) for _ in range(16)
    ]
    regs[1] = rng.choice([0, 1, 2, 3, 8])  # rcx: counts
    regs[3] = base + DATA + 0x2000 + 8 * rng.randrange(64)  # rbx
    regs[5] = base + DATA + 0x3000  # rbp
    regs[6] = base + DATA + 0x4000 + rng.randrange(64)  # rsi
    regs[7] = base + DATA + 0x5000 + rng.randrange(64)  # rdi
    regs[4] = base + STACK + 0x8000  # rsp
    regs[11] = base + taken  # r11: a code address
    regs[12] = base + DATA + 0x100  # r12: a table of code addresses
    regs[13] = rng.randrange(4)
    data = bytearray(rng.randbytes(0x8000))
    data[0x100:0x140] = struct.pack("<Q", base + taken) * 8
    stack = bytearray(rng.randbytes(0x10000))
    stack[0x7FE0:0x7FF8] = struct.pack("<Q", base + taken) * 3
    stack[0x8000:0x8100] = struct.pack("<Q", base + taken) * 32
    state = bytearray(0x300)
    state[: 16 * 8] = struct.pack("<16Q", *regs)
    struct.pack_into("<Q", state, FLAGS - STATE, rng.getrandbits(12) & STATUS | 0x202)
    return {"state": bytes(state), "data": bytes(data), "stack": bytes(stack)}


def compare(machine, code, rng):
    """Return a description of the first difference, or None."""
    address = machine.base + ORIGINAL
    insn = decode_one(code, address)
    if isinstance(insn, Refusal):
        return str(insn)
    copy = displace(insn, machine.base + COPY)
    if isinstance(copy, Refusal):
        return str(copy)
    taken = insn.target - machine.base if insn.target is not None else ORIGINAL + 0x1000
    machine.put(ORIGINAL - 0x800, b"\xcc" * 0x2000)
    after = ORIGINAL + insn.length
    machine.build_stub(STUBS, 1)
    machine.build_stub(STUBS + 0x800, 2)
    machine.put(ORIGINAL, code[: insn.length])
    machine.put(after, b"\xe9" + machine.rel(after + 5, STUBS))
    if taken != after:
        machine.put(taken, b"\xe9" + machine.rel(taken + 5, STUBS + 0x800))
    machine.put(COPY, copy + b"\xe9" + machine.rel(COPY + len(copy) + 5, after))
    for _ in range(ROUNDS):
        image = random_image(machine, rng, taken)
        first, second = run(machine, ORIGINAL, image), run(machine, COPY, image)
        if code[:2] == b"\x0f\x05":
            first["regs"][1] = second["regs"][1] = 0  # syscall leaves its own address in rcx
        for key, value in first.items():
            if value != second[key]:
                return f"{insn.text}: {key} differ"
    return None


def main():
    machine = Machine()
    rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    differences = []
    for case in json.load(sys.stdin):
        print(case, file=sys.stderr, flush=True)
        outcome = compare(machine, bytes.fromhex(case), rng)
        if outcome is not None:
            differences.append(f"{case}: {outcome}")
    print(json.dumps(differences))


if __name__ == "__main__":
    main()
