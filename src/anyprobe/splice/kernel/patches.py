"""Patches of a kernel: copies of what it runs now, a counter of the processor, and the write that leads there.

The analysis has settled what the kernel rewrites when it starts, such as calls of thunks; what is displaced is what the
live text has in its place. A displaced call pushes the address after the call itself, so that stack traces and the
unwinder see nothing but the kernel's own text.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from anyprobe.binary.kernel.addresses import BIAS
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Insn, decode_range
from anyprobe.splice.codegen.emit import PATCH_ALIGNMENT, ActionSource, emit_patch, head_bytes
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode
from anyprobe.splice.codegen.processes import Processes
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Strategy, Want

_LONGEST = 15
"""Bytes of an instruction."""
_NOPS = (
    b"", b"\x90", b"\x66\x90", b"\x0f\x1f\x00", b"\x0f\x1f\x40\x00", b"\x0f\x1f\x44\x00\x00",
    b"\x66\x0f\x1f\x44\x00\x00", b"\x0f\x1f\x80\x00\x00\x00\x00", b"\x0f\x1f\x84\x00\x00\x00\x00\x00",
    b"\x66\x0f\x1f\x84\x00\x00\x00\x00\x00",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelPatch:
    """A patch and the write that leads to it; all by the kernel's own addresses."""

    address: int
    code: bytes
    site: int
    old: bytes
    new: bytes
    boundaries: tuple[int, ...]
    """Where further instructions begin in the old bytes, from ``site`` on."""
    faulting: tuple[tuple[int, int], ...]
    """Copies of instructions that may fault, with the original of each."""

    @property
    def end(self) -> int:
        """Where the next patch may begin."""
        return self.address + len(self.code) + PATCH_ALIGNMENT - 1 & -PATCH_ALIGNMENT


@dataclass(frozen=True)
class PatchMaker:
    """Makes the patches of one module.

    ``live(low, high)`` reads the text as it is, at addresses of the analysis; ``faulting`` are the instructions that
    the kernel has fix-ups for; ``clobbers`` tells what may be overwritten at a wanted instruction.
    """

    live: Callable[[int, int], bytes]
    faulting: Container[int]
    clobbers: Callable[[Want], Clobbers]

    def make(
        self, splice: PlannedSplice, address: int, actions: Callable[[Want], tuple[Action, ...]]
    ) -> KernelPatch | Refusal:
        """Return the patch of a splice at an address; ``actions`` tells what it does for a want."""
        if any(want.block for want in splice.wants):  # of instructions as the analysis has settled them
            return Refusal(Reason.TOO_SHORT, splice.head, "the exit has no room for a jump")
        found = self._live_form(splice)
        if isinstance(found, Refusal):
            return found
        live, old = found

        patch = emit_patch(live, address, BIAS, ActionSource(actions, self.clobbers), {}, looped=False)
        if isinstance(patch, Refusal):
            return patch
        new = head_bytes(live, BIAS, address)
        start = live.insns[0].address
        if splice.strategy is Strategy.RETARGET:
            new = old[: splice.write_at - start] + new
        whole = {insn.address for insn in decode_range(old, start)}
        return KernelPatch(
            address, patch.code, start + BIAS, old, new + nop(len(old) - len(new)),
            tuple(sorted(at - start for at in whole if at > start)),
            tuple((copy, at) for at, copy in patch.copies if at - BIAS in self.faulting),
        )  # fmt: skip

    def _live_form(self, splice: PlannedSplice) -> tuple[PlannedSplice, bytes] | Refusal:
        """Return a splice of the instructions that the text has now, and the whole bytes that are written over.

        These end where the first instruction ends after the jump: what else is displaced may be entered by others.
        """
        start, end = splice.insns[0].address, splice.end
        least = splice.write_at + splice.written
        known = decode_range(self.live(start, max(end, least) + _LONGEST), start)
        live = tuple(insn for insn in known if insn.address < end)
        boundaries = {insn.address for insn in known}
        if end not in boundaries or any(insn.address not in boundaries for insn in splice.insns):
            detail = "the text has other instructions now than the analysis has seen"
            return Refusal(Reason.FOREIGN_BYTES, start, detail)
        if splice.strategy is Strategy.RETARGET and not _is_same_branch(live, splice.insns[0]):
            return Refusal(Reason.FOREIGN_BYTES, start, "the branch is another one now than the analysis has seen")
        written = [insn for insn in known if insn.address < least]
        if any(insn.is_endbr for insn in written):
            return Refusal(Reason.LANDING_PAD, start, "indirect branches must land on this endbr64")
        if any(insn.is_call for insn in written[:-1]):
            return Refusal(Reason.RETURN_ADDRESS, start, "a displaced call would return into the bytes of the jump")
        return replace(splice, insns=live), b"".join(insn.raw for insn in written)


def count(counter: int, processes: Processes | None = None) -> Action:
    """Return what counts in the counter at an offset from ``gs``, of each processor; in some processes only."""
    return Action(ActionKind.COUNT, counter, BankCode(None, 0, 0, None, per_processor=True, processes=processes))


def handle(
    routine: int, argument: int | None, ip: int = 0, function: int = 0, processes: Processes | None = None
) -> Action:
    """Return what calls the routine of a handler.

    Args:
        routine: its address.
        argument: what it is told of hits that it misses; None where it is told nothing.
        ip: what the handler is told as ``ctx.ip``, with ``function`` as ``ctx.func``; 0 where it does not ask.
        function: see ``ip``.
        processes: the only ones in which it is called; None: all.
    """
    bank = BankCode(None, 0, 0, None, handler=routine, per_processor=True, processes=processes)
    return Action(ActionKind.HANDLER, -1 if argument is None else argument, bank, ip, function)


def _is_same_branch(live: Sequence[Insn], insn: Insn) -> bool:
    return len(live) == 1 and live[0].target == insn.target and live[0].flow is insn.flow


def nop(size: int) -> bytes:
    """Return one instruction of up to fourteen bytes that does nothing."""
    longest = len(_NOPS) - 1
    return b"\x66" * (size - longest) + _NOPS[min(size, longest)]
