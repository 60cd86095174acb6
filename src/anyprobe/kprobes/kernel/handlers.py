"""The handlers of a kprobe of the kernel: wrapped as for processes; what the kernel forbids is refused by name."""

import ast
import errno
from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import KprobeError
from anyprobe.data.aggregates.aggregations import Count
from anyprobe.handlers.csource import CHandler
from anyprobe.handlers.frontend.source import source_of
from anyprobe.handlers.frontend.values import Alias
from anyprobe.handlers.types.storages import CallData
from anyprobe.kprobes import wrapping
from anyprobe.kprobes.compiling import DATA_BYTES, MAXACTIVE_LIMIT, fields
from anyprobe.kprobes.constants import constants
from anyprobe.kprobes.registers import (
    CALLER,
    KERNEL_REGISTERS,
    KERNEL_REGISTERS_AT_RETURN,
    SPLICED_REGISTERS,
    TASK,
)
from anyprobe.kprobes.structures import Djprobe, Handler, Jprobe, Kprobe, Kretprobe, Registered, kprobe_of
from anyprobe.probes.providers.kernel.calls import KernelCall
from anyprobe.probes.providers.kernel.handlers import KernelCallData, KernelHandler
from anyprobe.probes.providers.kernel.mechanisms import SPLICE
from anyprobe.probes.providers.kernel.places.sites import KernelSite
from anyprobe.probes.providers.kernel.places.specs import of_function

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.session import KernelSession


def is_spliced(session: "KernelSession") -> bool:
    """Return whether probes are splices: jumps to patches, in place of the kernel's own kprobes."""
    return session.demanded(None) == SPLICE.name


def check(probe: Registered, *, spliced: bool = False) -> None:
    """Raise ``KprobeError`` for what the kernel does not let a handler do, or a probe be."""
    kp = kprobe_of(probe)
    if isinstance(probe, Djprobe) and not spliced:
        detail = "the kernel itself decides which kprobes are jumps; splices are: kernel(mechanism='splice')"
        raise KprobeError(errno.EOPNOTSUPP, detail)
    if kp.fault_handler is not None:
        raise KprobeError(errno.EOPNOTSUPP, "the kernel has no fault handlers (since Linux 5.14)")
    if isinstance(probe, Jprobe) and probe.entry is None:
        raise KprobeError(errno.EINVAL, "a jprobe needs an entry")
    if isinstance(probe, Kretprobe):
        _check_kretprobe(probe)
    for function, registers in _handlers(probe):
        if isinstance(function, CHandler):
            raise KprobeError(errno.EOPNOTSUPP, "handlers in C are for processes; in the kernel they are in Python")
        written = _written(function, registers)
        if written:
            detail = f"{source_of(function).name} sets regs.{written}, and handlers in the kernel change no registers"
            raise KprobeError(errno.EACCES, detail)


def _check_kretprobe(probe: Kretprobe) -> None:
    if probe.handler is None and probe.entry_handler is None:
        raise KprobeError(errno.EINVAL, "a kretprobe needs a handler")
    if probe.maxactive > MAXACTIVE_LIMIT:
        raise KprobeError(errno.E2BIG, f"maxactive can be {MAXACTIVE_LIMIT} at most, not {probe.maxactive}")
    if not 0 <= probe.data_size <= DATA_BYTES:
        raise KprobeError(errno.E2BIG, f"data_size can be {DATA_BYTES} bytes at most, not {probe.data_size}")


def _handlers(probe: Registered) -> list[tuple[Handler, int]]:
    """Return the handlers, and which of their parameters is ``regs``; none: -1."""
    found: list[tuple[Handler | None, tuple[str, ...]]] = []
    if isinstance(probe, Kprobe):
        found = [(probe.pre_handler, ("p", "regs")), (probe.post_handler, ("p", "regs", "flags"))]
    elif isinstance(probe, Kretprobe):
        found = [(probe.handler, ("ri", "regs")), (probe.entry_handler, ("ri", "regs"))]
    elif isinstance(probe, Djprobe):
        found = [(probe.handler, ("djp", "regs"))]
    for function, names in found:
        wrapping.check_parameters(function, *names)
    return [(function, 1) for function, _ in found if function is not None]


def _written(function: Handler, parameter: int) -> str:
    """Return the first register that a handler sets, empty if it sets none."""
    tree = source_of(function).tree
    names = [each.arg for each in (*tree.args.posonlyargs, *tree.args.args)]
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            of = target.value if isinstance(target, ast.Attribute) else None
            if isinstance(target, ast.Attribute) and isinstance(of, ast.Name) and of.id == names[parameter]:
                return target.attr
    return ""


def of_instruction(session: "KernelSession", probe: Kprobe | Djprobe, site: KernelSite) -> KernelHandler | None:
    """Return what runs before the instruction; nothing: hits are counted."""
    function = probe.handler if isinstance(probe, Djprobe) else probe.pre_handler
    if function is None:
        return None
    return KernelHandler(session.collection, wrapping.before(function, _p(probe, site), _registers(session)))


def of_post(session: "KernelSession", kp: Kprobe, site: KernelSite) -> KernelHandler:
    """Return what runs after the instruction."""
    assert kp.post_handler is not None
    return KernelHandler(session.collection, wrapping.after(kp.post_handler, _p(kp, site), _registers(session)))


def of_jprobe(session: "KernelSession", probe: Jprobe) -> KernelHandler:
    """Return what runs with the function's parameters."""
    assert probe.entry is not None
    return KernelHandler(session.collection, probe.entry)


def of_kretprobe(
    session: "KernelSession", probe: Kretprobe, site: KernelSite, missed: Count
) -> tuple[KernelCall, Handler]:
    """Return the call that is followed, and what runs at its end; ``missed`` counts those that are not followed."""
    ri: dict[str, Any] = {"rp": _p(probe, site), "ret_addr": CALLER, "task": TASK, "data": Alias(("data",))}
    instance = constants("kretprobe_instance", ri)
    if probe.entry_handler is None:
        entry = wrapping.followed(missed)
    else:
        entry = wrapping.entered(probe.entry_handler, missed, instance, _registers(session))
    leave = wrapping.ignored()
    if probe.handler is not None:
        leave = wrapping.returned(probe.handler, instance, KERNEL_REGISTERS_AT_RETURN)
    data = KernelCallData(storage=CallData(max(probe.maxactive, 0)))
    return KernelCall(session, [of_function(site.module, site.name)], entry, data=data), leave


def _registers(session: "KernelSession") -> type:
    return SPLICED_REGISTERS if is_spliced(session) else KERNEL_REGISTERS


def _p(probe: Registered, site: KernelSite) -> type:
    return constants(type(probe).__name__.lower(), fields(probe, site.address))
