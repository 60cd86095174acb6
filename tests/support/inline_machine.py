"""Runs trivial handlers as patches do them, natively, with made-up registers; see ``routine_machine``.

Prints what was not as it has to be, over some thousand forms chosen at random.
"""

import json
import random
import struct
import sys

import routine_machine
from routine_machine import ENTER, FLAGS, GATE, MASK, RED_ZONE, REGION, REGS, SLOT, STACK, STATUS, Machine

from anyprobe.core.code import Comparison, Number, Update
from anyprobe.data.layouts.layout import BLOCK_NUMBER
from anyprobe.isa.registers import NUMBERS
from anyprobe.splice.codegen.handlers.inline import INLINE_ESTIMATE, Inline
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode, PatchWriter
from anyprobe.splice.plan.splices import SCRATCH_ORDER, Clobbers

ROUTINE, BLOCK, TABLE, STORAGE, SEEN = routine_machine.TRAMPOLINES, REGION + 0x1000, 0xC0000, 0xBF000, 0xBE000
ROWS, STRIDE, COUNT, TOTAL, HITS = 9, 128, 0x1040, 0x1048, 0x80
HOLDS = {
    "==": int.__eq__, "!=": int.__ne__, "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__,
}  # fmt: skip
FULL = (1 << 64) - 1


def converted(value, number):
    """Return a word as the handler's table of operations has it."""
    signed = number.signed
    for bits, signed in number.steps:
        value &= (1 << bits) - 1
        value -= (value >> (bits - 1) & 1 and signed) << bits
    value &= FULL
    return value - (1 << 64) if number.signed and value >> 63 else value


class Inlined(Machine):
    def __init__(self):
        super().__init__()
        self.word(STORAGE, self.base + TABLE)
        self.poke(self.base + BLOCK)
        out = b""  # the routine notes what it finds, and counts nothing
        for number in range(16):
            at = ROUTINE + len(out)
            out += bytes([0x48 | (number >> 3) << 2, 0x89, 5 | (number & 7) << 3])
            out += self.rel(at + 7, SEEN + 8 * number)  # mov [seen], reg
        out += b"\x9c\x8f\x05" + self.rel(ROUTINE + len(out) + 7, SEEN + 128) + b"\xc3"  # pushfq; pop [seen]; ret
        self.put(ROUTINE, out)

    def patch(self, inline, clobbers):
        start = self.build_start()
        writer = PatchWriter(self.base + ENTER + len(start))
        bank = BankCode(SLOT, self.base + GATE, 0, None, handler=self.base + ROUTINE)
        writer.action(Action(ActionKind.HANDLER, HITS, bank, inline=inline), clobbers)
        after = len(writer.out)
        writer.raw(bytes(5))
        size = len(writer.finish())
        writer.out[after : after + 5] = b"\xe9" + struct.pack("<i", size - after - 5)
        assert size <= INLINE_ESTIMATE, size
        self.put(ENTER, self.build_end(start + bytes(writer.out)))

    def hit(self, inline, clobbers, registers, flags, arguments, number, total):
        """Run once; return what the counters hold afterwards."""
        sp = STACK + 0x8000
        registers[4] = self.base + sp
        self.put(sp - RED_ZONE - 0x100, bytes(0x100) + random.randbytes(RED_ZONE + 8) + struct.pack("<2Q", *arguments))
        self.put(REGS, struct.pack("<16Q", *registers))
        self.word(FLAGS, flags)
        self.put(TABLE, bytes(0x4000))
        self.word(TABLE + number * STRIDE + TOTAL, total)
        self.put(BLOCK, bytes(0x100))
        self.put(SEEN, bytes(0x100))
        self.word(BLOCK + BLOCK_NUMBER, number)
        red_zone = self.memory[sp - RED_ZONE : sp + 0x18]
        self.patch(inline, clobbers)
        self.enter()
        assert self.memory[sp - RED_ZONE : sp + 0x18] == red_zone, "red zone"
        now = struct.unpack_from("<17Q", self.memory, SEEN)
        if any(now):
            there = [*registers[:4], registers[4] - 144, *registers[5:]]
            changed = {name for name, at in NUMBERS.items() if now[at] != there[at]}
            assert changed <= set(clobbers.registers), f"the routine sees other registers: {changed}"
            assert clobbers.flags or not (now[16] ^ flags) & STATUS, "the routine sees other flags"
        after = struct.unpack_from("<16Q", self.memory, REGS)
        lost = {name for name, at in NUMBERS.items() if after[at] != registers[at]}
        assert lost <= set(clobbers.registers), lost
        assert clobbers.flags or not (struct.unpack_from("<Q", self.memory, FLAGS)[0] ^ flags) & STATUS, "flags"
        at = BLOCK + HITS
        row = TABLE + number * STRIDE
        return (
            struct.unpack_from("<Q", self.memory, at)[0],
            struct.unpack_from("<2Q", self.memory, row + COUNT),
            bool(any(now)),
        )


def chosen_number(rng, word):
    steps = tuple((rng.choice((8, 16, 32)), rng.random() < 0.5) for _ in range(rng.choice((0, 1, 1, 1, 4))))
    return Number(word, steps, rng.random() < 0.5)


def one(machine, rng):
    flags_dead = rng.random() < 0.5
    names = [name for name in NUMBERS if name != "rsp" and (flags_dead or name != "rax")]
    sources = tuple(rng.choice(("stack+8", "stack+16", rng.choice(names), "rdi")) for _ in range(2))
    only_if = tuple(
        Comparison(
            rng.choice(sorted(HOLDS)),
            chosen_number(rng, rng.randrange(2)),
            rng.choice((0, 64, -64, 127, -1, (1 << 31) - 1, -(1 << 31))),
        )
        for _ in range(rng.choice((0, 1, 1, 2, 4)))
    )
    value = chosen_number(rng, 1) if rng.random() < 0.5 else None
    extreme = rng.choice(("", "min", "max")) if value is not None else ""
    signed, before = bool(extreme) and rng.random() < 0.5, rng.choice((0, 0, rng.getrandbits(64))) if extreme else 0
    update = Update(0, ROWS, STRIDE, COUNT, TOTAL, value, extreme, signed, only_if)
    inline = Inline(update, sources, machine.base + STORAGE)
    dead = tuple(name for name in SCRATCH_ORDER if rng.random() < 0.3 and name not in sources)
    registers = [rng.choice((rng.getrandbits(64), rng.getrandbits(6), FULL, 64, FULL - 63)) for _ in range(16)]
    arguments = [rng.choice((rng.getrandbits(64), 64, FULL)) for _ in range(2)]
    words = [
        arguments[int(each[6:]) // 8 - 1] if each.startswith("stack") else registers[NUMBERS[each]] for each in sources
    ]
    number, gate = rng.choice((0, 1, 3, 8)), rng.random() < 0.9
    machine.word(GATE, MASK if gate else 0)
    flags = rng.getrandbits(12) & STATUS | 0x202
    found = machine.hit(inline, Clobbers(dead, flags_dead), registers, flags, arguments, number, before)
    if not gate or not number:
        assert found == (0, (0, before), True), found
        return
    counts = all(
        HOLDS[each.symbol](
            converted(words[each.number.word], each.number),
            each.constant if each.number.signed else each.constant & FULL,
        )
        for each in only_if
    )
    total = converted(words[1], value) & FULL if counts and value is not None else before
    if extreme and counts:
        code = total ^ (1 << 63 if signed else 0) ^ (FULL if extreme == "min" else 0)
        total = max(before, code)
    assert found == (1, (int(counts), total), False), (found, counts, total, words)


def main():
    machine, rng, broken = Inlined(), random.Random(11), []
    rounds = int(sys.argv[1])
    for round_ in range(rounds):
        try:
            one(machine, rng)
        except AssertionError as reason:
            broken.append(f"{round_}: {reason}")
    machine.poke(0)
    print(json.dumps({"broken": broken[:20], "rounds": rounds}))


if __name__ == "__main__":
    main()
