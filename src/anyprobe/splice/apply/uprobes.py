"""Breakpoints that the kernel sets on splices for uprobes, and how the program lives with them.

The kernel writes one byte, ``int3``, and at a hit runs a copy of the instruction that the *file* has there; then the
thread goes on after it. When the uprobe is taken away, the kernel writes back the first byte that the file has. After
either, whatever a splice has written to the instruction's other bytes is no code: so these become the program's own
again, as soon as the breakpoint is seen.
"""

from collections.abc import Iterable

from anyprobe.core.memory import MemoryFault
from anyprobe.splice.apply.text import write_around_breakpoint
from anyprobe.splice.edits import Module
from anyprobe.splice.emitted import EmittedSplice
from anyprobe.target.base import ProcessFacts, TextMemory
from anyprobe.target.system.procfs import Mapping

BREAKPOINT = 0xCC
_MAPPED = "[uprobes]"
"""Where the kernel runs the copies, mapped at the first hit of an instruction that it does not emulate."""
IN_USE = "the kernel's uprobes are used in this program (bpftrace, perf, an eBPF agent)"
ADVICE = "one that is set on a probed instruction from now on may crash the program before it is seen"


def has_uprobes(mappings: Iterable[Mapping]) -> bool:
    """Return whether a uprobe has been hit in a process."""
    return any(mapping.path == _MAPPED for mapping in mappings)


def _only_difference(now: bytes, other: bytes) -> int | None:
    """Return where two runs of bytes differ, if that is at one byte alone."""
    found = [at for at, byte in enumerate(now) if byte != other[at]]
    return found[0] if len(found) == 1 else None


def without_splice(now: bytes, old: bytes, new: bytes) -> bytes | None:
    """Return what belongs to a site whose bytes are ``now``, a splice but for one byte that a uprobe has changed.

    ``old`` and ``new`` are the program's own bytes and the splice's. The changed byte stays: it is an ``int3``, or the
    program's again. None: the bytes are something else, or the program's own.
    """
    at = _only_difference(now, new) if now != old and len(now) == len(new) else None
    if at is None or now[at] not in (BREAKPOINT, old[at]):
        return None
    return old[:at] + now[at : at + 1] + old[at + 1 :]


def yield_to_breakpoint(process: ProcessFacts, modules: Iterable[Module], splice: EmittedSplice) -> str:
    """Take a splice out on which a breakpoint has been set; return what is to be said of it.

    A debugger writes back what it has found there: while one is attached, all is left to it.
    """
    module = next((each for each in modules if splice in each.splices()), None)
    if module is None or process.tracer() or not take_out(splice, module.splices(), process.mem):
        return "the program may crash where it meets it: take the breakpoint away before the probes"
    return "the program's own instructions are there again"


def _meets(other: EmittedSplice, splice: EmittedSplice) -> bool:
    """Return whether a splice's own instructions cannot run in its place because of another one, or the other not then.

    Displaced instructions may hold springboards of others, and their bytes the displacement of a jump in front.
    """
    first, last = splice.displaced
    low, high = min(first, splice.address), max(last, splice.address + len(splice.new))
    return other.address < high and low < other.address + len(other.new) + len(other.borrowed)


def has_breakpoint_only(now: bytes, old: bytes) -> bool:
    """Return whether the bytes are the program's own but for one ``int3``."""
    at = _only_difference(now, old)
    return at is not None and now[at] == BREAKPOINT


def take_out(splice: EmittedSplice, others: Iterable[EmittedSplice], memory: TextMemory) -> bool:
    """Give a splice's bytes back to the program, but for the one that a uprobe has changed; return whether that was so.

    ``others`` are the splices of the module: where one of them shares the bytes, or has written to instructions that
    are displaced here, nothing is written. Nothing is stopped for this: who runs the site now is lost unless the other
    bytes come first.
    """
    low = splice.address
    if any(each is not splice and _meets(each, splice) for each in others):
        return False
    try:
        now = memory.read(low, len(splice.new))
        content, at = without_splice(now, splice.old, splice.new), _only_difference(now, splice.new)
        if content is None or at is None:
            return False
        write_around_breakpoint(memory, low, now, content, at)
    except MemoryFault:
        return False
    return True
