"""Which functions of Go can be followed from entry to return: compiled ones, of versions whose goroutines are known."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.liveness.goroutine_register import fetches_goroutine
from anyprobe.isa.decode import Flow
from anyprobe.splice.plan.splices import Want, WantKind

if TYPE_CHECKING:
    from anyprobe.binary.objects.text import ModuleText


def why_not_followed(text: "ModuleText", code: FunctionCode, wants: Iterable[Want]) -> str | None:
    """Return why the calls of a Go function cannot be followed at its entry and exits, if they cannot be."""
    known = text.go_functions
    if known is None or known.number_at is None:
        made_by = "a version that does not say which" if known is None or known.version is None else known.version
        return f"where {made_by} of Go keeps a goroutine's number is not known; count instead"
    if not known.is_compiled(code.start):
        return "assembly and C code of a Go program may run without a goroutine at hand; count instead"
    if fetches_goroutine(code):
        return "this wrapper is called by assembly, without a goroutine at hand; count instead"
    for want in wants:
        if want.kind is not WantKind.EXIT:
            continue
        number = code.index_of(want.address)
        if number is not None and code.insn(number).flow is Flow.INDIRECT_JUMP:
            return f"it ends at {want.address:#x} in a jump through a pointer; count instead"
    return None
