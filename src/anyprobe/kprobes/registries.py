"""Which registry the probes of a session are in: of a process, or of the kernel."""

from typing import TYPE_CHECKING

from anyprobe.kprobes.registration import Registry, registry

if TYPE_CHECKING:
    from anyprobe.kprobes.kernel.registration import KernelRegistry
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.probes.session import Session

_REGISTRY = "kprobes"


def registry_of(session: "Session | KernelSession") -> "Registry | KernelRegistry":
    """Return the registry of a session, which lives and dies with it."""
    from anyprobe.probes.providers.kernel.session import KernelSession

    if not isinstance(session, KernelSession):
        return registry(session)
    from anyprobe.kprobes.kernel.registration import KernelRegistry

    found: KernelRegistry = vars(session).setdefault(_REGISTRY, None) or KernelRegistry(session)
    vars(session)[_REGISTRY] = found
    return found


def strict(session: "Session | KernelSession") -> bool:
    """Return whether errors are raised in a session, not returned as numbers."""
    from anyprobe.probes.providers.kernel.session import KernelSession

    return session.strict if isinstance(session, KernelSession) else session.options.strict
