"""Handlers of tests in guests, compiled beforehand: in an emulated machine LLVM takes a minute.

``python -m support.spliced_handlers`` compiles them for splices on guests of one and two processors; what is compiled
is kept where guests find it.
"""

from itertools import product

from anyprobe import Count, Hist, Sum, emit, i64, ptr, u64
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.compile_cache import native_code, spliced_code
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.context import InstanceLayout
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.types.calling_convention import Prototype
from anyprobe.handlers.types.storages import CallData
from anyprobe.probes.providers.kernel import calls
from anyprobe.probes.providers.kernel.passing import EVERYWHERE
from anyprobe.probes.providers.kernel.splices.shared_storages import of_processors

LEAST = 1000
PROCESSORS = 1, 2
sizes, by_comm = Hist("sizes", by=("pid",)), Count("by_comm", by=("comm",))
looked_at = Sum("looked_at", by=("func",))


def measured(ctx, file: u64, buffer: u64, size: u64):
    """Measure reads of some size by process, and tell of the largest."""
    if size >= LEAST:
        sizes.add(size, key=(ctx.pid,))
        if size >= 1 << 16:
            emit("large", pid=ctx.pid, size=size)


def measured_alone(ctx, file: u64, buffer: u64, size: u64):
    """Do the same without telling: in a guest the time stamp counter does not serve programs."""
    if size >= LEAST:
        sizes.add(size, key=(ctx.pid,))


def named(ctx):
    """Count by the task's name."""
    by_comm.add(key=(ctx.comm,))


def looked(ctx, first: ptr[u64]):
    """Read memory where the first parameter points."""
    looked_at.add(first[0], key=(ctx.func,))


def _unknown() -> Prototype:
    raise UnsupportedTarget("compiled beforehand")


def compile_all() -> None:
    """Compile all for splices, and one for processes."""
    native_code(intermediate(measured_alone, Setting(retval=None, entry=True, prototype=_unknown)))
    one = {"by": ("func",), "capacity": 1}
    timing = Hist("times", **one), Count("unmatched", **one), Count("tails", **one)
    for processors, by_clock in product(PROCESSORS, (False, True)):
        for functions in ((measured,), (named,), (looked,), calls.timing(*timing)):
            layout, storages = InstanceLayout(), {}
            compiled = []
            # as sessions do: what an entry stores has a type by the time the return is compiled
            for at, function in enumerate(functions):
                setting = Setting(
                    storages, layout, retval=i64 if at else None, entry=not at, prototype=_unknown,
                    kernel=EVERYWHERE | {"func", "ip", "regs", "retval", "data"},
                )  # fmt: skip
                compiled.append(intermediate(function, setting))
            for handler in compiled:
                own = [
                    of_processors(each, processors, by_clock=by_clock)
                    for each in handler.storages
                    if not isinstance(each, CallData)
                ]
                spliced_code(handler._replace(storages=tuple(own)))


if __name__ == "__main__":
    compile_all()
