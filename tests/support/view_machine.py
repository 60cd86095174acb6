"""Runs the signal view natively on a made-up signal frame, in this process's memory; see ``routine_machine``.

Run as a process of its own: reads a JSON list of cases from standard input, prints what became of each frame, of some
words, and what was not preserved of the handler's registers.
"""

import json
import random
import struct
import sys
from types import SimpleNamespace

from routine_machine import FLAGS, GATE, RED_ZONE, REGION, REGS, SLOT, STATUS, Machine

from anyprobe.splice.translate.routine import assemble_view
from anyprobe.splice.translate.steps import Op, Step
from anyprobe.splice.translate.table import ViewTable

PIECE, TABLE, PIECE_END, PATCH, SITE = 0xA0000, 0xB8000, 0xC0000, 0xA4000, 0xC8000
FRAME, PROGRAM_STACK, ROOT = 0xD0000, 0xE0000, 0xF0000
UC, REGISTERS, UCONTEXT_BYTES = 8, 0x28, 0x130
RSP, RIP, EFLAGS, WORDS = 15, 16, 17, 18
OTHER_FRAME = FRAME + 0x1000


class FakeArena:
    """The memory of the machine, as a session's."""

    def __init__(self, machine):
        self._memory = memoryview(machine.memory)

    def view(self, offset, size):
        return self._memory[offset : offset + size]

    def write(self, piece, address, content):
        start = piece.offset + address - piece.address
        self._memory[start : start + len(content)] = content


class ViewMachine:
    """One machine with the routine, and a table that is filled anew for each case."""

    def __init__(self):
        self.machine = machine = Machine()
        base = machine.base
        self.piece = SimpleNamespace(address=base + PIECE, end=base + PIECE_END, size=PIECE_END - PIECE, offset=PIECE)
        code, _, self.finish, _ = assemble_view(base + PIECE, base + ROOT)
        machine.put(PIECE, code)
        self.rng = random.Random(11)

    def fill(self, recipes):
        """Describe the patch, and say where its handler's frame below may be."""
        machine, base = self.machine, self.machine.base
        machine.put(TABLE, bytes(PIECE_END - TABLE))
        table = ViewTable(FakeArena(machine), self.piece, base + TABLE)
        bank = table.bank(SLOT, base + GATE, base + REGION)
        steps = {}
        for at, recipe in recipes.items():
            steps[int(at)] = tuple(Step(Op(op), a, bank if b == "bank" else b, c) for op, a, b, c in recipe)
        table.add([(base + PATCH, table.positions(steps), base + SITE)])
        index = table.index([(base + PIECE, base + TABLE), (base + SITE + 0x100, 1), (base + SITE + 0x200, 14)])
        assert index
        table.point_to(index)
        machine.put(ROOT, machine.memory[TABLE + 16 : TABLE + 24])

    def frame(self, at, registers, info=(0, 0)):
        """Put up a signal frame."""
        machine, base = self.machine, self.machine.base
        words = [self.rng.getrandbits(64) for _ in range(WORDS)]
        words[RSP], words[EFLAGS] = base + PROGRAM_STACK, 0x202
        for number, value in registers.items():
            words[int(number)] = value if not isinstance(value, list) else base + value[0]
        machine.put(at + UC + REGISTERS, struct.pack(f"<{WORDS}Q", *words))
        machine.put(at + UC + UCONTEXT_BYTES, struct.pack("<iii", info[0], 0, info[1]))
        return words

    def run(self, case):
        machine, base = self.machine, self.machine.base
        self.fill(case["recipes"])
        for at, value in case.get("words", {}).items():
            machine.word(int(at), value if not isinstance(value, list) else base + value[0])
        for at, content in case.get("code", {}).items():
            machine.put(int(at), bytes.fromhex(content))
        machine.poke(0 if not case.get("slot") else base + case["slot"])
        if "other" in case:
            self.frame(OTHER_FRAME, case["other"])
        before = self.frame(FRAME, case["registers"], case.get("info", (0, 0)))
        registers = [self.rng.getrandbits(64) for _ in range(16)]
        registers[4], registers[7] = base + FRAME, case.get("signal", 14)
        registers[2] = base + FRAME + UC + case.get("skew", 0)
        registers[6] = base + FRAME + UC + UCONTEXT_BYTES
        flags = self.rng.getrandbits(12) & STATUS | 0x202
        stack = self.rng.randbytes(RED_ZONE)
        machine.put(FRAME - RED_ZONE, stack)
        machine.put(REGS, struct.pack("<16Q", *registers))
        machine.word(FLAGS, flags)
        machine.build(base + PIECE, case.get("argument", 0))
        machine.enter()
        after = struct.unpack_from(f"<{WORDS}Q", machine.memory, FRAME + UC + REGISTERS)
        other = struct.unpack_from(f"<{WORDS}Q", machine.memory, OTHER_FRAME + UC + REGISTERS)
        return {
            "broken": machine.compare("view", registers, flags, stack, FRAME),
            "changed": {number: after[number] for number in range(WORDS) if after[number] != before[number]},
            "pc": after[RIP] - base,
            "other": other[RIP] - base,
            "words": {at: struct.unpack_from("<Q", machine.memory, int(at))[0] for at in case.get("words", {})},
            "base": base,
        }


def main():
    view = ViewMachine()
    results = [view.run(case) for case in json.load(sys.stdin)]
    view.machine.poke(0)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
