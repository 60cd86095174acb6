"""The processor as the oracle for what instructions read and write: what is not called read must not matter.

Run as a process of its own, like ``displaced.oracle``.
"""

from anyprobe.isa.decode import Flow
from anyprobe.isa.effects import effects
from support.displaced.machine import FAULTED, ORIGINAL
from support.displaced.oracle import DifferentError, Oracle, serve

# OF SF ZF AF CF PF: their bits in the effects' masks and in the flags register
FLAGS = {1: 0x800, 2: 0x80, 4: 0x40, 8: 0x10, 16: 0x1, 32: 0x4}


def flag_bits(mask):
    return sum(bit for flag, bit in FLAGS.items() if mask & flag)


class Influence(Oracle):
    def run(self, insn):
        """Change each register and flag that is not called read, one after the other."""
        if insn.flow is not Flow.NEXT:
            return "not run", "where it goes is for others to say"
        machine = self.machine
        machine.place(insn.raw, None)
        known, ran = effects(insn), False
        for _ in range(self.states):
            image = self.random.image(insn, ORIGINAL + 0x1000)
            first, again = machine.run(insn.address, image), machine.run(insn.address, image)
            if first.which == FAULTED or first != again:
                continue  # tells nothing, or reads the time
            ran = True
            for number in range(16):
                if not known.may_write >> number & 1 and first.regs[number] != image.regs[number]:
                    raise DifferentError(f"writes register {number}")
                if not known.reads >> number & 1:
                    self.vary_register(insn, image, first, number, known.writes >> number & 1)
            self.vary_flags(insn, image, first, known)
        return ("ran" if ran else "always faulted"), ""

    def vary_register(self, insn, image, first, number, written):
        regs = list(image.regs)
        regs[number] ^= self.random.rng.getrandbits(64) | 1
        other = self.machine.run(insn.address, image._replace(regs=regs))
        if not written:
            other.regs[number] = first.regs[number]
        if other._replace(vectors=first.vectors) != first or other.vectors != first.vectors:
            raise DifferentError(f"register {number} matters")

    def vary_flags(self, insn, image, first, known):
        unread = flag_bits(~known.flags_read)
        changed = image.flags ^ self.random.rng.getrandbits(12) & unread
        other = self.machine.run(insn.address, image._replace(flags=changed))
        kept = unread & ~flag_bits(known.flags_written)
        if other._replace(flags=other.flags & ~kept) != first._replace(flags=first.flags & ~kept):
            raise DifferentError(f"flags in {image.flags ^ changed:#x} matter or are kept")


if __name__ == "__main__":
    serve(Influence)
