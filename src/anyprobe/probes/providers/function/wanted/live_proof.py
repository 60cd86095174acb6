"""What a program's files say about changes without a stop: what may be unloaded, who could block SIGTRAP."""

from functools import cached_property

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.images.modules import VDSO, LoadedObject
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.objects import ObjectTable, imports, soname
from anyprobe.splice.edits import Module

_BLOCKERS = """
    sigprocmask pthread_sigmask sigblock sigsetmask sighold sigset sigsuspend sigpause ppoll pselect epoll_pwait
    epoll_pwait2 pthread_attr_setsigmask_np setcontext swapcontext makecontext
"""
"""What runs code of a program with signals blocked, or on stacks whose size is not known."""
_LIBC = ("libc.so", "libpthread", "librt.so", "libanl", "libresolv", "libnss_", "ld-linux", "ld-musl", "libc.musl")
"""The C library and what it consists of. It blocks all signals inside ``pthread_create``, ``posix_spawn``, at the end
of threads, and in threads of its own (for ``aio_read``, ``getaddrinfo_a``), from which it calls most of itself."""


class LiveProof:
    """Answers for one process."""

    def __init__(self, objects: ObjectTable) -> None:
        """Read files only when asked."""
        self._objects = objects
        self._homes: dict[Module, LoadedObject] = {}
        """The objects of modules that were asked about since the last look."""

    def may_vanish(self, module: Module) -> Refusal | None:
        """Return why the module's text may go while it is written to: it was loaded later, and may be unloaded."""
        loaded = self._object_of(module)
        if loaded is not None and self._objects.is_permanent(loaded):
            return None
        return Refusal(Reason.NEEDS_STOP, module.low, f"{module.name} may be unloaded meanwhile")

    def blocks_traps(self, address: int) -> Refusal | None:
        """Return why some thread may come to ``address`` with SIGTRAP blocked, whatever calls it."""
        known = self._blocker
        if not known:
            return None
        return Refusal(Reason.TRAP_UNSAFE, address, known)

    def is_called_blocked(self, module: Module, code: FunctionCode) -> Refusal | None:
        """Return why a function in particular may run with SIGTRAP blocked."""
        address = code.start
        if module.code.text.is_go:
            return Refusal(Reason.TRAP_UNSAFE, address, "Go's runtime runs code with all signals blocked")
        loaded = self._object_of(module)
        if loaded is None or _is_libc(loaded):
            return Refusal(Reason.TRAP_UNSAFE, address, "the C library runs code of its own with all signals blocked")
        return None

    def refresh(self) -> None:
        """Look at what the program has loaded by now; raise ``TargetError`` if that cannot be found out."""
        self._objects.refresh()
        self._homes = {}
        self.__dict__.pop("_blocker", None)

    def _object_of(self, module: Module) -> LoadedObject | None:
        if module not in self._homes:
            found = next((each for each in self._objects.objects if self._objects.module(each) is module), None)
            if found is None:
                return None
            self._homes[module] = found
        return self._homes[module]

    @cached_property
    def _blocker(self) -> str:
        """Who could block SIGTRAP in code of the program, as a sentence; empty if nothing is seen that could."""
        libc = self._objects.libc()
        if libc is None or libc.is_executable:
            return "the program has no C library of its own to tell who blocks SIGTRAP"
        for loaded in self._objects.objects:
            if loaded.name != VDSO and not _is_libc(loaded) and imports(loaded, _BLOCKERS.split()):
                return f"{loaded.name} may block SIGTRAP"
        return ""


def _is_libc(loaded: LoadedObject) -> bool:
    """Return whether an object is a part of the C library, whose files may have a version in their names."""
    return loaded.name.startswith(_LIBC) or soname(loaded).startswith(_LIBC)
