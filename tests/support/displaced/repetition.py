"""The processor as the oracle for what may run once more: an instruction and twice the same must come to the same.

Run as a process of its own, like ``displaced.oracle``.
"""

from anyprobe.isa.relocate import displace
from anyprobe.splice.translate.abstract_state import initial
from anyprobe.splice.translate.idempotence import Replay, replay_after
from anyprobe.splice.translate.steps import restoring
from support.displaced.machine import FAULTED, ORIGINAL
from support.displaced.oracle import Oracle, serve


class Repetition(Oracle):
    def run(self, insn):
        """Compare one run with two in a row; what has to be undone in between is left out."""
        replay = replay_after(Replay(initial()), insn)
        if replay is None or insn.target is not None:
            return "never twice", ""
        unread = (number for number in range(16) if not replay.read >> number & 1)  # where it stands, they may be dead
        undone = restoring(replay.state, unread, flags_dead=not replay.flags_read)
        if undone is None:
            return "never twice", ""
        if undone:
            return "not run", "leaves the stack pointer elsewhere"
        machine, ran = self.machine, False
        machine.place(insn.raw, None)
        place = next(iter(machine.copies))
        copy = displace(insn, place)
        twice = copy + displace(insn, place + len(copy))
        for _ in range(self.states):
            image = self.random.image(insn, ORIGINAL + 0x1000)
            if machine.run(insn.address, image).which == FAULTED:
                continue
            ran = True
            machine.place_copy(place, twice, insn.end)
            self.same(insn, image, range(place, place + len(twice)))
        return ("ran" if ran else "always faulted"), ""


if __name__ == "__main__":
    serve(Repetition)
