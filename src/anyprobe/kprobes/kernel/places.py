"""Where a kprobe of the running kernel is to be, or the kernel's error number."""

import errno
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.errors import KprobeError, SpecError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.kprobes.djprobes import check_assumptions, check_size
from anyprobe.kprobes.structures import Djprobe, Kprobe
from anyprobe.probes.providers.kernel.code import RunningCode, lower, running, shown
from anyprobe.probes.providers.kernel.places.following import following
from anyprobe.probes.providers.kernel.places.sites import KernelSite
from anyprobe.probes.providers.kernel.places.specs import of_function
from anyprobe.splice.kernel.places import entry_of
from anyprobe.target.kernel import symbols

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.session import KernelSession

_SWITCHING = "__switch_to"
"""Where kprobes are not supported, since the processor is on the stack of another task than the current one."""
_NUMBER = re.compile(r"\(([A-Z][A-Z0-9]+)\)")
_OF_REASONS = {
    Reason.NOT_A_BOUNDARY: errno.EILSEQ, Reason.KPROBE_BLACKLIST: errno.EINVAL, Reason.NO_EXIT: errno.EINVAL,
    Reason.FOREIGN_BYTES: errno.EBUSY, Reason.CONTROL_FLOW_UNKNOWN: errno.EOPNOTSUPP,
    Reason.OVERLAP: errno.EEXIST, Reason.KPROBE: errno.EBUSY, Reason.TASK_INSIDE: errno.EAGAIN,
}  # fmt: skip


def locate(session: "KernelSession", kp: Kprobe, *, entry: bool = False) -> KernelSite:
    """Return where a kprobe is to be; ``entry``: it has to be at a function's beginning."""
    if (kp.symbol_name is None) == (kp.addr is None):
        raise KprobeError(errno.EINVAL, "exactly one of symbol_name and addr has to be given")
    if kp.addr is not None and not isinstance(kp.addr, int):
        raise KprobeError(errno.EINVAL, f"addr is a number, not {kp.addr!r}")
    if kp.offset < 0:
        raise KprobeError(errno.EINVAL, f"a negative offset, {kp.offset}")
    if kp.inlined:
        raise KprobeError(errno.EOPNOTSUPP, "of the kernel it is not known where functions are inlined")
    name, offset, module = kp.symbol_name or "", kp.offset, kp.module
    if kp.addr is not None:
        function = symbols.running().containing(kp.addr + kp.offset)
        if function is None:
            raise KprobeError(errno.EINVAL, f"{kp.addr:#x} is in no function of the kernel")
        name, offset, module = function.name, kp.addr + kp.offset - function.address, function.module
    if entry and offset:
        raise KprobeError(errno.EINVAL, f"+{offset:#x} is not the first instruction of {name}")
    if name == _SWITCHING:
        raise KprobeError(errno.EINVAL, f"{name} runs on the stack of one task and is already of another")
    found = _sites(session, name, offset, module)
    if kp.addr is not None:
        found = [each for each in found if each.address == kp.addr + kp.offset]
    if len(found) > 1:
        raise KprobeError(errno.EADDRNOTAVAIL, f"{name} means {len(found)} functions of the kernel")
    return found[0]


def _sites(session: "KernelSession", name: str, offset: int, module: str) -> list[KernelSite]:
    if not name or any(character in name for character in "*?[:%+ "):
        raise KprobeError(errno.ENOENT, f"{name!r} is no symbol")
    try:
        return session.resolve(of_function(module, name, "offset" if offset else "entry", offset))
    except SpecError as error:
        number = errno.EINVAL if offset and symbols.running().named(name) else errno.ENOENT
        nearest = f"; nearest: {', '.join(error.nearest)}" if error.nearest else ""
        raise KprobeError(number, f"{error.message}{nearest}") from error


def after(session: "KernelSession", site: KernelSite) -> KernelSite:
    """Return the place after a kprobe's instruction, where its post handler is to run."""
    assert site.function is not None
    known = symbols.running()
    found = following(known, RunningCode(known).pristine.read, site.function, site.offset)
    if isinstance(found, Refusal):
        raise refused(found, "no post handler: ")
    return _sites(session, site.name, found, site.module)[0]


def spliced_at(site: KernelSite) -> tuple[FunctionCode, int]:
    """Return the code of a site's function, and where in it the jump of a splice is written."""
    assert site.function is not None
    module = running(symbols.running()).module(site.function.module)
    code = module.code.function_at(lower(site.function.address))
    if isinstance(code, Refusal):
        raise refused(shown(code))
    at = entry_of(module.code, code, module.image.settled) if site.kind == "entry" else lower(site.address)
    if isinstance(at, Refusal):
        raise refused(shown(at))
    return code, at


def check_djprobe(probe: Djprobe, site: KernelSite, others: Iterable[KernelSite]) -> None:
    """Check what a djprobe asks of the code; ``others``: where other djprobes are."""
    code, at = spliced_at(site)
    check_size(code, at, probe.size)
    if probe.strict:
        check_assumptions(code, at, probe.size, [spliced_at(other)[1] for other in others])


def refused(why: Refusal, before: str = "") -> KprobeError:
    """Return the error for a refusal: with the number that the kernel itself has given, where it has given one."""
    number = _OF_REASONS.get(why.reason)
    if number is None:
        names = [getattr(errno, name, None) for name in _NUMBER.findall(why.detail)]
        number = next((each for each in names if each is not None), errno.EINVAL)
    return KprobeError(number, f"{before}{why}", why)
