"""Where threads land whose displaced instruction has faulted, at the end of the patch.

The handler of the signal, or what stands before it, has the thread go on here (``Op.LAND``), with every register
as it was at the fault and no signal under way. Handlers run as they run at any site; one that takes the fault for
handled sends the thread elsewhere. Else the instruction is executed once more, by a copy of its own: it faults again,
and that fault is the program's.

    lea rsp, [rsp-128]; push number; jmp common     for each number of a trap, 16 bytes
    common: push argument; call routine; lea rsp, [rsp+8]     for each handler
    lea rsp, [rsp+136]; the instruction; jmp after it
"""

from collections.abc import Sequence

from iced_x86 import Mnemonic

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.relocate import displace
from anyprobe.splice.codegen.patch import Action, PatchWriter, UndisplaceableError
from anyprobe.splice.emitted import ENTRY_BYTES, EmittedPatch, Landing
from anyprobe.splice.translate.routine import LAST_TRAP
from anyprobe.splice.translate.steps import STEP_BYTES, Op, Positions, Recipe, Step

LANDING_ESTIMATE = ENTRY_BYTES * (LAST_TRAP + 2) + 128
"""Bytes of a landing, with one handler."""

_UNDEFINED = (Mnemonic.UD0, Mnemonic.UD1, Mnemonic.UD2)
_DONE = Step(Op.DONE)
_FAULTED: Recipe = (Step(Op.IF_SYNCHRONOUS, b=STEP_BYTES), _DONE, Step(Op.SITE), _DONE)
"""What faults here has done so at the site."""


def can_land(insn: Insn) -> bool:
    """Return whether the faults of an instruction can be told from others': it has one place to fault at."""
    return insn.flow is Flow.NEXT or (insn.flow is Flow.TRAP and insn.iced.mnemonic in _UNDEFINED)


def check_landing(insn: Insn, *, first: bool) -> None:
    """Raise if a fault of an instruction does not come to a landing, or would not be shown where it is."""
    if not can_land(insn):
        detail = f"{insn.text}: no fault handlers for what jumps, calls or returns"
        raise UndisplaceableError(Refusal(Reason.NO_DISPLACED_FORM, insn.address, detail))
    if not first:
        detail = "a fault handler's instruction has to be the first of what is displaced"
        raise UndisplaceableError(Refusal(Reason.MAY_FAULT, insn.address, detail))


def write_landing(writer: PatchWriter, insn: Insn, copy: int, after: int, actions: Sequence[Action]) -> Landing:
    """Append a landing for a run-time instruction whose copy is at ``copy``; ``after``: where that goes on."""
    writer.code("int3; " * (-len(writer.out) % ENTRY_BYTES))
    entries = writer.here
    common = entries + ENTRY_BYTES * (LAST_TRAP + 1)
    for number in range(LAST_TRAP + 1):
        writer.code(f"lea rsp, [rsp-128]; push {number}")
        writer.relative("jmp common", common)
        writer.code("int3; int3; int3; int3")
    for action in actions:
        writer.handle_fault(action)
    writer.code("lea rsp, [rsp+136]")
    again = writer.here
    content = displace(insn, again)
    if isinstance(content, Refusal):
        raise UndisplaceableError(content)
    writer.raw(content)
    writer.relative("jmp after", after)
    return Landing(copy, entries, again)


def with_landings(known: Positions, patch: EmittedPatch) -> Positions:
    """Return the recipes of a patch with what leads to its landings."""
    if not patch.landings:
        return known
    found = dict(known)
    for landing in patch.landings:
        land = Step(Op.LAND, b=landing.entries - patch.address)
        copy = landing.copy - patch.address
        found[copy] = (land, *found.get(copy, _FAULTED))
        # who is at an entry has come from here, in the frame of a handler that was interrupted before it returned
        for entry in range(landing.entries, landing.entries + ENTRY_BYTES * (LAST_TRAP + 1), ENTRY_BYTES):
            found[entry - patch.address] = (land, _DONE)
        if landing.again:
            found[landing.again - patch.address] = _FAULTED
    return found
