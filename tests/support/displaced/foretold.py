"""The processor as the oracle for what is foretold of registers, flags and conditions, from those that are known.

Run as a process of its own, like ``displaced.oracle``.
"""

from anyprobe.isa.decode import Flow
from anyprobe.isa.evaluate import Flags, Known, evaluate, holds
from support.displaced.influence import FLAGS
from support.displaced.machine import FAULTED, ORIGINAL
from support.displaced.oracle import DifferentError, Oracle, serve

SPECIAL = (0, 1, 2, 8, 31, 63, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)
KNOWN_FLAGS = sum(each for each in FLAGS if each != 8)  # the auxiliary flag is never known


def known_flags(value):
    return sum(flag for flag, bit in FLAGS.items() if value & bit)


class Foretold(Oracle):
    """Compares what is foretold with what becomes of it; the detail is how many registers and flags were foretold."""

    def run(self, insn):
        if insn.flow is not Flow.NEXT:
            return "not run", "where it goes is for others to say"
        machine, rng = self.machine, self.random.rng
        machine.place(insn.raw, None)
        told = ran = 0
        for _ in range(self.states):
            image = self.random.image(insn, ORIGINAL + 0x1000)
            regs = [rng.choice(SPECIAL) if rng.random() < 0.4 and at != 4 else old for at, old in enumerate(image.regs)]
            image = image._replace(regs=regs)
            after = machine.run(insn.address, image)
            if after.which == FAULTED:
                continue
            ran += 1
            some = rng.choice((0, KNOWN_FLAGS, KNOWN_FLAGS, rng.getrandbits(6) & KNOWN_FLAGS))
            everything = rng.random() < 0.5
            before = Known(
                tuple(each if everything or rng.random() < 0.6 else None for each in image.regs),
                Flags(some, known_flags(image.flags) & some),
            )
            told += self.compare(evaluate(insn, before), after)
        return ("ran" if ran else "always faulted"), told

    def compare(self, found, after):
        for number, (value, real) in enumerate(zip(found.registers, after.regs, strict=True)):
            if value is not None and value != real:
                raise DifferentError(f"register {number} is {real:#x}, and not {value:#x}")
        real = known_flags(after.flags)
        if found.flags.values != real & found.flags.known:
            raise DifferentError(f"flags are {real & found.flags.known:#x}, and not {found.flags.values:#x}")
        for condition in range(16):
            if holds(condition, found.flags) not in (None, holds(condition, Flags(KNOWN_FLAGS, real))):
                raise DifferentError(f"condition {condition}")
        return sum(value is not None for value in found.registers) + found.flags.known.bit_count()


if __name__ == "__main__":
    serve(Foretold)
