"""What the original asks of the bytes that a djprobe replaces, and which of its assumptions they do not meet.

The insertion address is that of the first instruction. The *DCR* are the whole instructions that the five bytes of the
jump touch, and more if ``size`` says so; the *JTPR* are these five bytes without the first. Our engine can do with less
(it moves branches and calls, and reaches short instructions otherwise), so all of this binds on demand only.
"""

import errno
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anyprobe.core.errors import KprobeError
from anyprobe.core.refusal import Reason
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Flow, Insn

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode

ASSUMPTIONS = {
    1: "assumption i: the insertion address is not the first byte of an instruction",
    2: "assumption ii: an instruction of the DCR refers to the instruction pointer",
    3: "assumption iii: an instruction of the DCR may give up the processor",
    4: "assumption iv: a jump or call leads into the JTPR",
}
_OF_ENGINE = {
    Reason.NOT_A_BOUNDARY: 1,
    Reason.NO_DISPLACED_FORM: 2,
    Reason.JUMP_TARGET_IN_JTPR: 4,
    Reason.CONTROL_FLOW_UNKNOWN: 4,
}
"""Which assumption a refusal of the engine's comes to."""
_LEAVING = frozenset({Flow.CALL, Flow.INDIRECT_CALL, Flow.SYSCALL})


def named(error: KprobeError) -> KprobeError:
    """Return an error that names the assumption which the engine could not do without."""
    number = _OF_ENGINE.get(error.refusal.reason) if error.refusal is not None else None
    if number is None:
        return error
    return KprobeError(error.errno, f"{ASSUMPTIONS[number]} ({error.detail})", error.refusal)


def check_size(code: "FunctionCode", address: int, size: int) -> None:
    """See that ``size`` bytes are whole instructions, enough for a jump; 0: not said."""
    if not size:
        return
    if size < JUMP_BYTES:
        raise KprobeError(errno.EINVAL, f"a jump takes {JUMP_BYTES} bytes, not {size}")
    if address + size != code.end and not code.is_boundary(address + size):
        raise KprobeError(errno.EINVAL, f"{size} bytes are no whole instructions")


def check_assumptions(code: "FunctionCode", address: int, size: int, others: Iterable[int]) -> None:
    """Raise for the first assumption of the original that does not hold; ``others``: where other djprobes are."""
    region = range(address + 1, address + JUMP_BYTES)
    for other in others:
        if other in region or address in range(other + 1, other + JUMP_BYTES):
            raise KprobeError(errno.EEXIST, "another djprobe's bytes overlap these")
    for insn in _displaced(code, address, max(size, JUMP_BYTES)):
        if insn.flow in _LEAVING:
            raise KprobeError(errno.EINVAL, ASSUMPTIONS[3])
        if insn.target is not None or insn.iced.is_ip_rel_memory_operand:
            raise KprobeError(errno.EINVAL, ASSUMPTIONS[2])
    if any(target in region for target in code.jump_targets):
        raise KprobeError(errno.EINVAL, ASSUMPTIONS[4])


def _displaced(code: "FunctionCode", address: int, size: int) -> list[Insn]:
    """Return the instructions of the DCR."""
    found = []
    at = address
    while at < address + size:
        insn = code.insn_at(at)
        if insn is None:
            raise KprobeError(errno.EINVAL, "the function ends within the DCR")
        found.append(insn)
        at += len(insn.raw)
    return found
