"""Runs the generated routines natively, on this thread's own slot and on a bank in this process's memory.

Run as a process of its own, since wrong code may do anything: reads a JSON list of steps from standard input, prints
what the bank holds afterwards and which registers were not preserved. One mapping holds everything.
"""

import ctypes
import json
import mmap
import random
import struct
import sys
import threading
from dataclasses import replace

from anyprobe.data.layouts.callers import CallerTables
from anyprobe.data.layouts.layout import BLOCK_HEAD_BYTES, INSTANCE_BYTES, START, SWITCH_SINCE, SWITCHES, BankLayout
from anyprobe.data.snapshots.costs import UNIT, Costs
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode, PatchWriter
from anyprobe.splice.codegen.routines import CHILDREN, RoutineFacts, assemble_routines
from anyprobe.splice.codegen.timing.trampoline import HANDLED, assemble_trampolines

SLOT = 0x268
"""An unused word of the C library's thread control block."""
BLOCKS, COUNTERS, RECORDS, MAXACTIVE, RETURNS = 2, 4, 2, 4, 8
MASK = 1 << 46
"""Every address that mmap returns has this bit."""

SIZE = 1 << 20
HANDLING = 0x3200
"""Code that calls a handler at replaced return addresses; here the handler counts."""
ENTER, CALLERS, PEEK, POKE, ROUTINES, TRAMPOLINES, STATE, GATE, STACK, REGION = (
    0x1000, 0x2000, 0x3000, 0x3100, 0x4000, 0x9000, 0xB000, 0xC000, 0x20000, 0x40000,
)  # fmt: skip
CLOCK = STATE + 0x300
REGS, HARNESS_RSP, FLAGS = STATE, STATE + 0x200, STATE + 0x210
STATUS = 0x8D5 | 0x400  # OF SF ZF AF PF CF and DF
RED_ZONE = 128


class SmallLayout(BankLayout):
    """A bank that is soon exhausted."""

    @property
    def blocks(self):
        return BLOCKS


def small_layout():
    noted = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    nested = int(sys.argv[2]) if len(sys.argv) > 2 else 0  # how many calls there can be
    by_thread = len(sys.argv) > 3 and sys.argv[3] == "apart"
    if nested:
        return SmallLayout(COUNTERS, 2 * RECORDS, nested, RETURNS, noted, nested=True, nodes=64, by_thread=by_thread)
    return SmallLayout(COUNTERS, RECORDS, MAXACTIVE, RETURNS, noted, by_thread=by_thread)


def costs_of(costs):
    """Return the constants of generated code for what each routine costs before it reads the clock, and afterwards."""
    whole = {routine: sum(parts) * UNIT for routine, parts in costs.items()}
    before = {routine: parts[0] * UNIT for routine, parts in costs.items()}
    return Costs(
        entered=whole["enter"], left=whole["leave"], ended=before["leave"],
        jumped=whole["leave_tail"], came_back=whole["leave_caller"], came=before["leave_caller"],
        passed=whole["leave_caller"],
    )  # fmt: skip


class Machine:
    def __init__(self):
        # Not executable by accident: this process exists only to run generated code.
        self.memory = mmap.mmap(-1, SIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.layout = small_layout()
        facts = RoutineFacts(self.layout, self.base + REGION, self.base + GATE, SLOT)
        self.costs = {}
        """Of each routine what it costs before the clock is read, and afterwards."""
        if len(sys.argv) > 3 and sys.argv[3] != "apart":
            self.costs = json.loads(sys.argv[3])
            facts = replace(facts, clock=self.base + PEEK + 0x80, costs=costs_of(self.costs))
            at = PEEK + 0x80
            code = b"\x48\x8b\x05" + self.rel(at + 7, CLOCK)  # mov rax, [clock]
            self.put(at, code + bytes.fromhex("48c70600000000 48894608 31c0 c3"))  # seconds: 0, nanoseconds: rax
        code, self.routines, _ = assemble_routines(facts, self.base + ROUTINES)
        assert len(code) < TRAMPOLINES - ROUTINES
        more, self.trampolines, _ = assemble_trampolines(facts, self.routines, self.base + TRAMPOLINES)
        assert len(more) < STATE - TRAMPOLINES
        self.put(TRAMPOLINES, more)
        handling = PatchWriter(self.base + HANDLING)
        code_of = BankCode(SLOT, self.base + GATE, 0, self.routines, handler=self.routines.count)
        handling.handle_return(Action(ActionKind.HANDLER, self.layout.counters_offset, code_of))
        self.put(HANDLING, handling.finish())
        assert self.base & MASK
        self.put(ROUTINES, code)
        self.put(PEEK, b"\x64\x48\x8b\x04\x25" + struct.pack("<i", SLOT) + b"\xc3")  # mov rax, fs:[slot]; ret
        self.put(POKE, b"\x64\x48\x89\x3c\x25" + struct.pack("<i", SLOT) + b"\xc3")  # mov fs:[slot], rdi; ret
        self.put(PEEK + 0x40, b"\x64\x48\x8b\x04\x25\x10\0\0\0\xc3")  # mov rax, fs:[0x10]; ret
        self.enter = ctypes.CFUNCTYPE(None)(self.base + ENTER)
        self.peek = ctypes.CFUNCTYPE(ctypes.c_uint64)(self.base + PEEK)
        self.thread_pointer = ctypes.CFUNCTYPE(ctypes.c_uint64)(self.base + PEEK + 0x40)
        self.poke = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(self.base + POKE)
        assert self.peek() == 0
        self.replaced = []
        self.looks = []
        self.pushed = None
        """What the next call finds on the stack as its return point."""
        self.word(GATE, MASK)

    def put(self, offset, content):
        self.memory[offset : offset + len(content)] = content

    def word(self, offset, value):
        self.put(offset, struct.pack("<Q", value & (1 << 64) - 1))

    def advance(self, ticks):
        self.word(CLOCK, struct.unpack_from("<Q", self.memory, CLOCK)[0] + ticks)

    def fill(self, words):
        """Write the first thread's block; ``[depth]`` stands for a stack pointer."""
        start, size = REGION + self.layout.blocks_offset, self.layout.stride
        self.put(start + BLOCK_HEAD_BYTES, bytes(size - BLOCK_HEAD_BYTES))
        for offset, word in words:
            self.word(start + offset, self.base + STACK + 0x8000 - 0x40 * word[0] if isinstance(word, list) else word)

    def block(self):
        """Return the words of the first thread's block that are not 0, by their offsets."""
        start, size = REGION + self.layout.blocks_offset, self.layout.stride
        words = struct.unpack_from(f"<{size // 8}Q", self.memory, start)
        return {8 * number: word for number, word in enumerate(words) if word}

    def rel(self, end, target):
        return struct.pack("<i", target - end)

    def move(self, opcode, number, at):
        rex = 0x48 | (number >> 3) << 2
        return bytes([rex, opcode, 5 | (number & 7) << 3]) + self.rel(at + 7, REGS + 8 * number)

    def build_start(self):
        """Load all registers and flags."""
        at, out = ENTER, bytes.fromhex("53554154415541564157")  # push rbx, rbp, r12-r15
        out += b"\x48\x89\x25" + self.rel(at + len(out) + 7, HARNESS_RSP)  # mov [harness rsp], rsp
        out += b"\xff\x35" + self.rel(at + len(out) + 6, FLAGS) + b"\x9d"  # push [flags]; popfq
        for number in range(16):
            out += self.move(0x8B, number, at + len(out))  # mov reg, [state]
        return out

    def build_end(self, out, at=ENTER):
        """Store all registers and flags, return."""
        for number in range(16):
            out += self.move(0x89, number, at + len(out))  # mov [state], reg
        out += b"\x48\x8b\x25" + self.rel(at + len(out) + 7, HARNESS_RSP)  # mov rsp, [harness rsp]
        out += b"\x9c\x8f\x05" + self.rel(at + len(out) + 7, FLAGS)  # pushfq; pop [flags]
        out += bytes.fromhex("415f415e415d415c5d5bfcc3")  # pop r15-r12, rbp, rbx; cld; ret
        return out

    def build(self, routine, argument):
        """Load all registers and flags, call the routine as a patch does, store them, return."""
        at, out = ENTER, self.build_start()
        out += b"\x48\x8d\x64\x24\x80"  # lea rsp, [rsp-128]
        out += b"\x68" + struct.pack("<i", argument)  # push argument
        out += b"\xe8" + self.rel(at + len(out) + 5, routine - self.base)  # call routine
        out += b"\x48\x8d\xa4\x24\x88\x00\x00\x00"  # lea rsp, [rsp+136]
        self.put(ENTER, self.build_end(out))

    def call(self, routine, argument, depth, rng, address=None):
        """Return what was not preserved; with a return ``address``, the word that holds it may be replaced."""
        sp = STACK + 0x8000 - int(0x40 * depth)
        registers = [rng.getrandbits(64) for _ in range(16)]
        registers[4] = self.base + sp
        flags = rng.getrandbits(12) & STATUS | 0x202
        stack = rng.randbytes(0x1000)
        if self.pushed is not None:
            stack = stack[:RED_ZONE] + struct.pack("<Q", self.pushed) + stack[RED_ZONE + 8 :]
            self.pushed = None
        if address is not None:
            stack = stack[:RED_ZONE] + struct.pack("<Q", address) + self.memory[sp + 8 : sp + 0x1000 - RED_ZONE]
        self.put(sp - RED_ZONE, stack)
        self.put(REGS, struct.pack("<16Q", *registers))
        self.word(FLAGS, flags)
        where = self.routines if address is None else self.trampolines
        self.build(getattr(where, routine), argument)
        before, after = self.costs.get(routine, (0, 0))
        self.advance(before)
        self.enter()
        self.advance(after)
        if address is not None:
            now = self.memory[sp : sp + 8]
            stubs = range(self.trampolines.stubs, self.trampolines.stubs + 8 * self.trampolines.count, 8)
            self.replaced.append(int.from_bytes(now, "little") in stubs and now != struct.pack("<Q", address))
            stack = stack[:RED_ZONE] + now + stack[RED_ZONE + 8 :]
        return self.compare(routine, registers, flags, stack, sp)

    def tables(self):
        """Return the tables of return points."""
        return CallerTables(memoryview(self.memory)[REGION : REGION + self.layout.size], self.layout)

    def noted(self):
        """Return the return points that were not known."""
        return [(point, record) for _, point, record in self.tables().noted()] if self.layout.callers else []

    def end(self, routine, argument, depth, rng, point):
        """End a call whose caller goes on at ``point``; at a return point the stack pointer is one word above."""
        caller = routine == "leave_caller"
        if caller:
            depth -= 1 / 8
        self.pushed = None if caller else point
        return self.call(routine, argument, depth, rng)

    def come_in(self, routine, argument, depth, number, rng):
        """Enter a function that a caller (or, None, a function that jumped there) has called; see what is replaced.

        Without an argument its return is handled.
        """
        if argument is None:
            argument = HANDLING - TRAMPOLINES | HANDLED
        sp = STACK + 0x8000 - int(0x40 * depth)
        address = self.caller(number) if number is not None else struct.unpack_from("<Q", self.memory, sp)[0]
        return self.call(routine, argument, depth, rng, address)

    def caller(self, number):
        """Return the address of a caller's code behind its call, which stores what it finds."""
        return self.base + CALLERS + 0x200 * number

    def come_back(self, depth, rng):
        """Return as the function does; the caller must find everything as the function left it."""
        sp = STACK + 0x8000 - int(0x40 * depth)
        registers = [rng.getrandbits(64) for _ in range(16)]
        registers[4] = self.base + sp
        flags = rng.getrandbits(12) & STATUS | 0x202
        stack = self.memory[sp + 8 : sp + 0x800]
        self.put(REGS, struct.pack("<16Q", *registers))
        self.word(FLAGS, flags)
        self.put(ENTER, self.build_start() + b"\xc3")  # ret
        for number in range(4):
            at = CALLERS + 0x200 * number
            head = b"\xc6\x05" + self.rel(at + 7, FLAGS + 16) + bytes([number])  # mov byte [who], number
            self.put(at, self.build_end(head, at))
        self.enter()
        registers[4] += 8
        return self.compare("come_back", registers, flags, stack, sp + 8 + RED_ZONE)

    def compare(self, routine, registers, flags, stack, sp):
        """Return what is not as it was."""
        broken = []
        after = struct.unpack_from("<16Q", self.memory, REGS)
        broken += [f"register {number}" for number in range(16) if after[number] != registers[number]]
        now = struct.unpack_from("<Q", self.memory, FLAGS)[0]
        if (now ^ flags) & STATUS:
            broken.append(f"flags {flags:#x} became {now:#x}")
        if self.memory[sp - RED_ZONE : sp - RED_ZONE + len(stack)] != stack:
            broken.append("stack or red zone")
        return [f"{routine}: {each}" for each in broken]


def run(machine, steps, rng):
    broken = []
    for step in steps:
        kind = step[0]
        if kind == "call":
            broken += machine.call(step[1], step[2], step[3], rng)
        elif kind == "enter":
            broken += machine.come_in(step[1], step[2], step[3], step[4], rng)
        elif kind == "back":
            broken += machine.come_back(step[1], rng)
            if machine.memory[FLAGS + 16] != step[2]:
                broken.append(f"came back to {machine.memory[FLAGS + 16]}, not {step[2]}")
        elif kind == "end":
            broken += machine.end(step[1], step[2], step[3], rng, step[4])
        elif kind == "know":
            assert machine.tables().set(*step[1:])
        elif kind == "own":
            machine.word(GATE + CHILDREN, step[1])
        elif kind == "gate":
            machine.word(GATE, MASK if step[1] else 0)
        elif kind == "slot":
            machine.poke(step[1])
        elif kind == "write":
            machine.word(REGION + step[1], step[2])
        elif kind == "fill":  # the first thread's block: zeros, but for these words
            machine.fill(step[1])
        elif kind == "look":
            machine.looks.append(machine.block())
        elif kind == "age":
            at = REGION + step[1]
            machine.word(at, struct.unpack_from("<Q", machine.memory, at)[0] - step[2])
        elif kind == "pass" and machine.costs:
            machine.advance(step[1])
        elif kind == "pass":  # so many ticks, as all open calls of the first thread see it
            starts = [START + INSTANCE_BYTES * number for number in range(machine.layout.maxactive)]
            starts += [machine.layout.offset_of(SWITCHES) + SWITCH_SINCE] if machine.layout.nested else []
            for start in starts:
                at = REGION + machine.layout.blocks_offset + start
                machine.word(at, struct.unpack_from("<Q", machine.memory, at)[0] - step[1])
    return broken


def main():
    machine = Machine()
    broken = run(machine, json.load(sys.stdin), random.Random(7))
    start = REGION
    words = struct.unpack_from(f"<{(SIZE - start) // 8}Q", machine.memory, start)
    result = {
        "words": {8 * number: word for number, word in enumerate(words) if word},
        "broken": broken,
        "replaced": machine.replaced,
        "looks": machine.looks,
        "noted": machine.noted(),
        "slot": machine.peek() and machine.peek() - machine.base - REGION,
        "thread": machine.thread_pointer(),
        "tid": threading.get_native_id(),
        "top_of_stack": machine.base + STACK + 0x8000,
    }
    machine.poke(0)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
