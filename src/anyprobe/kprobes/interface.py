"""The kernel's functions. They return 0 or a negative error number; in a strict session they raise ``KprobeError``."""

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.errors import KprobeError, NoSuchProcess, TargetExited
from anyprobe.kprobes.registries import registry_of, strict
from anyprobe.kprobes.structures import Djprobe, Jprobe, Kprobe, Kretprobe, Registered, kprobe_of
from anyprobe.probes.scripts.current import current

if TYPE_CHECKING:
    from anyprobe.kprobes.kernel.registration import KernelRegistry
    from anyprobe.kprobes.registration import Registry
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.probes.session import Session

    Sessions = Session | KernelSession


def _do(session: "Sessions | None", change: "Callable[[Registry | KernelRegistry], None]") -> int:
    """Make a change in a session, the current one by default, and return 0 or the negative error number."""
    session = session or current()
    try:
        change(registry_of(session))
    except KprobeError as error:
        if strict(session):
            raise
        return -error.errno
    except (TargetExited, NoSuchProcess):
        if strict(session):
            raise
        return -errno.ESRCH
    return 0


def _register(probes: Sequence[Registered], kind: type[Registered], session: "Sessions | None") -> int:
    def change(known: "Registry | KernelRegistry") -> None:
        if not probes:
            raise KprobeError(errno.EINVAL, f"at least one {kind.__name__} is needed")
        try:
            known.register(probes)
        except (TargetExited, NoSuchProcess) as error:
            for probe in probes:
                kprobe_of(probe).error = str(error)
            raise

    for probe in probes:
        if not isinstance(probe, kind):
            raise TypeError(f"register_{kind.__name__.lower()} is for a {kind.__name__}, not for {probe!r}")
    return _do(session, change)


def _unregister(probes: Sequence[Registered], session: "Sessions | None") -> None:
    _do(session, lambda known: known.unregister(probes))


def register_kprobe(kp: Kprobe, *, session: "Sessions | None" = None) -> int:
    """Register a probe."""
    return _register([kp], Kprobe, session)


def register_kprobes(kps: Sequence[Kprobe], *, session: "Sessions | None" = None) -> int:
    """Register several probes: all of them, or none."""
    return _register(kps, Kprobe, session)


def unregister_kprobe(kp: Kprobe, *, session: "Sessions | None" = None) -> None:
    """Remove a probe; of one that is not registered, ``addr`` is cleared."""
    _unregister([kp], session)


def unregister_kprobes(kps: Sequence[Kprobe], *, session: "Sessions | None" = None) -> None:
    """Remove several probes in one change; of those that are not registered, ``addr`` is cleared."""
    _unregister(kps, session)


def disable_kprobe(kp: Kprobe, *, session: "Sessions | None" = None) -> int:
    """Disarm a registered probe."""
    return _do(session, lambda known: known.disable(kp))


def enable_kprobe(kp: Kprobe, *, session: "Sessions | None" = None) -> int:
    """Arm a probe that was disabled."""
    return _do(session, lambda known: known.enable(kp))


def register_jprobe(jp: Jprobe, *, session: "Sessions | None" = None) -> int:
    """Register a jprobe."""
    return _register([jp], Jprobe, session)


def register_jprobes(jps: Sequence[Jprobe], *, session: "Sessions | None" = None) -> int:
    """Register several jprobes: all of them, or none."""
    return _register(jps, Jprobe, session)


def unregister_jprobe(jp: Jprobe, *, session: "Sessions | None" = None) -> None:
    """Remove a jprobe; of one that is not registered, ``addr`` is cleared."""
    _unregister([jp], session)


def unregister_jprobes(jps: Sequence[Jprobe], *, session: "Sessions | None" = None) -> None:
    """Remove several jprobes in one change; of those that are not registered, ``addr`` is cleared."""
    _unregister(jps, session)


def disable_jprobe(jp: Jprobe, *, session: "Sessions | None" = None) -> int:
    """Disarm a registered jprobe."""
    return _do(session, lambda known: known.disable(jp))


def enable_jprobe(jp: Jprobe, *, session: "Sessions | None" = None) -> int:
    """Arm a jprobe that was disabled."""
    return _do(session, lambda known: known.enable(jp))


def register_kretprobe(rp: Kretprobe, *, session: "Sessions | None" = None) -> int:
    """Register a return probe."""
    return _register([rp], Kretprobe, session)


def register_kretprobes(rps: Sequence[Kretprobe], *, session: "Sessions | None" = None) -> int:
    """Register several return probes: all of them, or none."""
    return _register(rps, Kretprobe, session)


def unregister_kretprobe(rp: Kretprobe, *, session: "Sessions | None" = None) -> None:
    """Remove a return probe; of one that is not registered, ``addr`` is cleared."""
    _unregister([rp], session)


def unregister_kretprobes(rps: Sequence[Kretprobe], *, session: "Sessions | None" = None) -> None:
    """Remove several return probes in one change; of those that are not registered, ``addr`` is cleared."""
    _unregister(rps, session)


def disable_kretprobe(rp: Kretprobe, *, session: "Sessions | None" = None) -> int:
    """Disarm a registered return probe."""
    return _do(session, lambda known: known.disable(rp))


def enable_kretprobe(rp: Kretprobe, *, session: "Sessions | None" = None) -> int:
    """Arm a return probe that was disabled."""
    return _do(session, lambda known: known.enable(rp))


def register_djprobe(
    djp: Djprobe,
    addr: int | None = None,
    size: int | None = None,
    *,
    strict_djprobe: bool = False,
    session: "Sessions | None" = None,
) -> int:
    """Register a djprobe; ``strict_djprobe``: with ``-EEXIST`` where its bytes overlap those of another."""
    djp.addr, djp.size = addr if addr is not None else djp.addr, size if size is not None else djp.size
    djp.strict = strict_djprobe
    return _register([djp], Djprobe, session)


def register_djprobes(djps: Sequence[Djprobe], *, session: "Sessions | None" = None) -> int:
    """Register several djprobes: all of them, or none."""
    return _register(djps, Djprobe, session)


def unregister_djprobe(djp: Djprobe, *, session: "Sessions | None" = None) -> None:
    """Remove a djprobe; of one that is not registered, ``addr`` is cleared."""
    _unregister([djp], session)


def unregister_djprobes(djps: Sequence[Djprobe], *, session: "Sessions | None" = None) -> None:
    """Remove several djprobes in one change; of those that are not registered, ``addr`` is cleared."""
    _unregister(djps, session)


def disable_djprobe(djp: Djprobe, *, session: "Sessions | None" = None) -> int:
    """Disarm a registered djprobe."""
    return _do(session, lambda known: known.disable(djp))


def enable_djprobe(djp: Djprobe, *, session: "Sessions | None" = None) -> int:
    """Arm a djprobe that was disabled."""
    return _do(session, lambda known: known.enable(djp))
