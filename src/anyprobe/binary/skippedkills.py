"""What is dead only if no fault is skipped: where one is, the instruction has overwritten nothing."""

from anyprobe.binary.function import FunctionCode
from anyprobe.binary.instructionmasks import masks_of
from anyprobe.isa.decode import Flow
from anyprobe.isa.faults import may_fault


class SkippedKills:
    """Looks at one function: at what its instructions that may fault overwrite."""

    def __init__(self, function: FunctionCode) -> None:
        """Look at all of its instructions."""
        self._function, self._masks = function, masks_of(function)
        self._faulting = frozenset(number for number, one in enumerate(function.iced) if may_fault(one))
        self._doubtful = 0
        for number in self._faulting:
            self._doubtful |= self._masks[number].writes

    def doubtful(self, address: int) -> int:
        """Return what may be live in front of an instruction although it is overwritten before it is read.

        Registers are bits 0 to 15 by encoding number, status flags bits from 16 on. Left out is what is overwritten for
        certain before control goes anywhere.
        """
        number = self._function.index_of(address)
        if number is None:
            return -1
        doubtful, certain = self._doubtful, 0
        for here in range(number, len(self._masks)):
            masks = self._masks[here]
            if masks.flow is not Flow.NEXT:
                break
            if here not in self._faulting:
                certain |= masks.writes & doubtful
            doubtful &= ~masks.writes
            if not doubtful:
                break
        return self._doubtful & ~certain
