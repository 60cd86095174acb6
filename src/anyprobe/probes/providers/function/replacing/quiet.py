"""Which threads are inside of some functions, by the stacks of all threads, which stand still meanwhile."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from anyprobe.core.errors import TargetError
from anyprobe.probes.providers.function.handlers.hit_stacks import HitStacks
from anyprobe.probes.stacks.unwinding import Frame, Walk, walk

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.binary.objects.functions import Function
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.target.base import ProcessQuiescence
    from anyprobe.target.system.ptrace import Registers

_DEPTH = 4096
"""Frames of a stack that are looked at."""


class Inside(NamedTuple):
    """A thread that may come back into a function."""

    tid: int
    function: str = ""
    """The function, if the thread is known to be inside of one."""
    pc: int = 0
    """Else how far out its stack is known, 0 where nothing is."""


class Stacks(HitStacks):
    """The stacks of a process that stands still; what is needed for them has been read before."""

    def __init__(self, host: "ProbeHost") -> None:
        """Read what is loaded, and by which rules its frames are left."""
        super().__init__(host.symbols, host.process.mem.read)
        host.objects.refresh()
        self._objects = host.objects
        for loaded in host.objects.objects:
            try:
                _ = loaded.image.unwind_rules
            except TargetError:  # no frame of it is left, then
                continue

    def rule(self, at: int) -> int | None:
        """Return the unwinding rule of an instruction, None where there is no code that was loaded before."""
        return None if self._objects.at(at) is None else super().rule(at)

    def of(self, registers: "Registers") -> Walk:
        """Return the stack of a thread."""
        return walk(self, Frame(registers.rip, registers.rsp, registers.rbp, exact=True), self._word, _DEPTH)


class Code(NamedTuple):
    """A part of a function's code."""

    low: int
    high: int
    name: str
    """The function's."""


class Functions:
    """Some functions of a process."""

    def __init__(self, host: "ProbeHost", code: Sequence[Code]) -> None:
        """Get ready to look who is inside of them."""
        self._stacks = Stacks(host)
        self._code = code

    def inside(self, stop: "ProcessQuiescence") -> Inside | None:
        """Return a thread that is inside of one of them, or of which that is not known."""
        for parent in stop.waiting:  # of its registers the kernel tells two
            return Inside(parent.tid)
        for thread in stop.threads:
            found = self._stacks.of(cast("Registers", thread.registers))
            for frame in found.frames:
                for each in self._code:
                    if each.low <= frame.at < each.high:
                        return Inside(thread.tid, each.name)
            if not found.complete:
                return Inside(thread.tid, pc=found.frames[-1].pc)
        return None


def code_of_site(site: "ResolvedSite") -> list[Code]:
    """Return where the code of a function is, its parts that lie elsewhere included."""
    return code_of(site.object, site.function, site.canonical.removesuffix(":entry"))


def code_of(loaded: "LoadedObject", function: "Function", name: str) -> list[Code]:
    """Return where the code of a function of an object is."""
    functions, bias = loaded.image.functions, loaded.bias
    parts = [part for part, owner in functions.cold_parts.items() if owner == function.start]
    found = [function, *filter(None, map(functions.at, parts))]
    return [Code(each.start + bias, each.end + bias, name) for each in found]
