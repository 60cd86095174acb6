"""Markers whose nop cannot move together with what follows it: they are placed at the instruction after the nop.

A nop changes nothing, so where only it leads to the next instruction, both are come to equally often, with the same
registers. That helps where a program handles faults: an instruction that may fault can be displaced first, and not
after another one.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.refusal import Reason
from anyprobe.splice.plan.splices import Want, WantKind

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.probe import Place, Probe

NOTE = "placed at the instruction after the marker's nop, which may fault"
_NOP = b"\x90"


def after_nop(code: FunctionCode, address: int) -> int | None:
    """Return the instruction that only the nop at an address leads to, over other nops; ``None`` if there is none."""
    line = [insn for insn in code.lines.around(address) if insn.address >= address]
    if not line or line[0].address != address or line[0].raw != _NOP:
        return None
    return next((insn.address for insn in line if insn.raw != _NOP), None)


def moved_after(probes: "Iterable[Probe]") -> "Iterator[Place]":
    """Yield the places of markers that were refused for what follows them, each now at the instruction after it."""
    for place in (place for probe in probes for place in probe.places):
        why = place.hook.refusal
        if place.site.marker is None or place.want.after or why is None or why.reason is not Reason.MAY_FAULT:
            continue
        code = place.module.code.function_at(place.site.function.start)
        after = after_nop(code, place.want.address) if isinstance(code, FunctionCode) else None
        if after is not None:
            place.want = Want(after, WantKind.OFFSET, tag=place.hook)
            place.site = place.site._replace(note=NOTE)
            place.hook.refusal = None
            place.hook.ip = place.address if place.hook.ip else 0
            place.module.show(after)
            yield place
