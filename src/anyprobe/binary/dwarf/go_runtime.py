"""What the debug information of a Go program says of the types of its runtime."""

from anyprobe.binary.dwarf import units as dw
from anyprobe.binary.dwarf.debug_info import DebugInfo


def goroutine_number_at(info: DebugInfo) -> int | None:
    """Return where ``runtime.g`` has the goroutine's number; None where it does not begin with the stack's bounds."""
    goroutine = info.named("runtime.g")
    members = () if goroutine is None else goroutine.children()
    places = {each.name: each.number(dw.AT_MEMBER_LOCATION) for each in members}
    return places.get("goid") if places.get("stack") == 0 else None
