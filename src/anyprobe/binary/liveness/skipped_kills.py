"""What is dead only if no fault is skipped: where one is, the instruction has overwritten nothing."""

from anyprobe.binary.analysis.views import FunctionView
from anyprobe.binary.decoding.instruction_masks import masks_at
from anyprobe.isa.decode import Flow


class SkippedKills:
    """Looks at one function: at what its instructions that may fault overwrite, as far as it has to."""

    def __init__(self, function: FunctionView) -> None:
        """Look at none of its instructions yet."""
        self._function = function
        self._looked_at = 0
        """How many of its instructions ``_overwritten`` knows of."""
        self._overwritten = 0

    def doubtful(self, address: int, among: int) -> int:
        """Return what of ``among`` may be live before an instruction although it is overwritten before it is read.

        Registers are bits 0 to 15 by encoding number, status flags bits from 16 on. Left out is what is overwritten for
        certain before control goes anywhere.
        """
        number = self._function.index_of(address)
        if number is None:
            return among
        return self._among_overwritten(among & ~self._certain(number, among))

    def _certain(self, number: int, among: int) -> int:
        """Return what the first instruction that overwrites it overwrites for certain, with nothing but plain ones."""
        certain = 0
        for here in range(number, len(self._function.iced)):
            masks = masks_at(self._function, here)
            if masks.flow is not Flow.NEXT or not among:
                break
            if not masks.may_fault:
                certain |= masks.writes & among
            among &= ~masks.writes
        return certain

    def _among_overwritten(self, among: int) -> int:
        """Return what of ``among`` some instruction that may fault overwrites."""
        count = len(self._function.iced)
        while among & ~self._overwritten and self._looked_at < count:
            masks = masks_at(self._function, self._looked_at)
            if masks.may_fault:
                self._overwritten |= masks.writes
            self._looked_at += 1
        return among & self._overwritten
