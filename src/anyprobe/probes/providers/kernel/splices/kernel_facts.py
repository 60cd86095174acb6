"""Where in the running kernel is what compiled handlers ask for: by its symbols and types, whatever its version."""

from contextlib import suppress

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.probes.clock import clock_source, own_time, tick_nanoseconds
from anyprobe.probes.providers.kernel.chosen import Chosen
from anyprobe.probes.providers.kernel.places.sites import KernelNames
from anyprobe.splice.codegen.processes import Processes
from anyprobe.splice.kernel.handlers import FUNCTIONS, RESCHEDULE, Kernel
from anyprobe.target.kernel import preemption
from anyprobe.target.kernel.btf import Btf, TypesUnavailable
from anyprobe.target.kernel.symbols import Symbols

_TOGETHER = "pcpu_hot"
"""The structure of each processor's memory in which kernels from 6.2 on have what is used most."""
_WORDS = {"preempt_count": "__preempt_count", "cpu_number": "cpu_number", "current_task": "current_task"}
"""The members of that, and the variables of kernels without."""
_MEMBERS = {"pid": "task_struct", "tgid": "task_struct", "comm": "task_struct", "cred": "task_struct",
            "uid": "cred", "gid": "cred"}  # fmt: skip


def facts_of(names: KernelNames) -> Kernel:
    """Return what is known of the running kernel; raise ``UnsupportedTarget`` where it lacks what all handlers need."""
    types: Btf | None = None
    with suppress(TypesUnavailable):
        types = names.types.kernel
    count, number, task = (_of_processor(names.symbols, types, word) for word in _WORDS)
    functions = {name: found[0].address for name in FUNCTIONS if (found := names.symbols.named(name))}
    members = {name: place for name in _MEMBERS if (place := _member(types, _MEMBERS[name], name)) is not None}
    nanoseconds = since = 0
    if clock_source() == "tsc":  # what the kernel itself trusts
        nanoseconds = tick_nanoseconds()
        own, monotonic = own_time()
        since = monotonic - own
    reschedule = names.symbols.named(RESCHEDULE) if preemption.is_preemptible() else []
    return Kernel(
        count, number, task, members, functions, nanoseconds, since, reschedule[0].address if reschedule else 0
    )


def processes_of(names: KernelNames, chosen: Chosen | None) -> Processes | None:
    """Return how a patch knows the processes whose hits count, None if all do.

    Raises:
        UnsupportedTarget: those count, too, that they start, or the kernel does not tell where a task has its number.
    """
    if not chosen:
        return None
    if chosen.children:
        raise UnsupportedTarget("splices do not follow what processes start: fentry and kprobe do")
    types = names.types.kernel
    member = _member(types, "task_struct", "tgid")
    if member is None:
        raise UnsupportedTarget("the kernel's types do not tell where a task has its process's number")
    task = _of_processor(names.symbols, types, "current_task")
    return Processes(chosen.pids or chosen.without, task, member, are_left_out=bool(chosen.without))


def _of_processor(symbols: Symbols, types: Btf | None, name: str) -> int:
    """Return where each processor has a word, as an offset from ``gs``."""
    alone = symbols.of_processor(_WORDS[name])
    if alone is not None:
        return alone
    base, member = symbols.of_processor(_TOGETHER), _member(types, _TOGETHER, name)
    if base is None or member is None:
        raise UnsupportedTarget(f"neither symbols nor types of this kernel tell where {_WORDS[name]} is")
    return base + member


def _member(types: Btf | None, structure: str, name: str) -> int | None:
    """Return the offset of a member, None where that is not told."""
    found = None if types is None else types.structure(structure)
    member = None if found is None or types is None else types.member(found, name)
    return None if member is None else member.offset
