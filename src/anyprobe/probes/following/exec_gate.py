"""Where a program executes another one it waits a moment, until the controller traces the thread that does.

All of glibc's ``exec`` functions, ``posix_spawn``, ``system`` and ``popen`` come through ``execve``; ``execveat`` and
``fexecve`` make their call themselves. Fork children wait as well, and those that borrow their parent's memory: places
to wait in are taken by turns, not by numbers of threads, which these do not have. No thread waits if the controller is
gone.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from anyprobe.core.refusal import Refusal
from anyprobe.probes.handlers.callbacks import Callbacks, Hit
from anyprobe.splice.codegen.handlers.rendezvous import Room

if TYPE_CHECKING:
    from anyprobe.probes.host import ProbeHost
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.splice.userspace.signal_view import Place

PATIENCE = 10.0
"""Seconds that a thread waits at most: others may be served before it."""
_PLACES = 64
"""How many threads of a program and of its children may wait at once."""
FUNCTIONS = ("execve", "execveat", "fexecve")
"""The functions of the C library in which the system calls are made."""


class ExecGate:
    """The gate of one session."""

    def __init__(self, session: "ProbeHost", serve: Callable[[str, Hit], object]) -> None:
        """Nothing is placed yet; ``serve`` is called with the function's name, in the thread that serves the gate."""
        self._session, self._serve = session, serve
        self._callbacks = Callbacks(session, room=Room(_PLACES, taken=True))
        self._ending = False
        self._names: dict[int, str] = {}
        """The functions, by where they begin."""

    def place(self, objects: "ObjectTable", function_at: "Callable[[int], Place | Refusal]") -> str:
        """Have threads wait that execute; return why they cannot be made to, nothing if they can."""
        libc = objects.libc()
        if libc is None:
            return "it has no C library whose exec functions are known"
        if self._session.process.is_filtered():
            return "it filters its system calls"
        places: dict[str, Place] = {}
        for name in FUNCTIONS:
            for function in libc.image.functions.lookup(name)[:1]:
                found = function_at(function.start + libc.bias)
                if isinstance(found, Refusal):
                    return f"{name}: {found}"
                places[name] = found
        self._names = {code.entry + module.bias: name for name, (module, code) in places.items()}
        refusals = self._callbacks.place_inside(list(places.values()), self._serve_hit, None, timeout=PATIENCE)
        return next((f"{name}: {each}" for name, each in zip(places, refusals, strict=True) if each is not None), "")

    def __contains__(self, address: int) -> bool:
        """Return whether threads sleep at an address of the program's memory."""
        return address in self._callbacks

    def _serve_hit(self, hit: Hit) -> None:
        if not self._ending:
            self._serve(self._names[hit.ip], hit)

    def missed(self) -> int:
        """Return how many threads were not waited for, or not to the end."""
        return sum(self._callbacks.lost().values())

    def end(self) -> None:
        """Let all threads go; none waits from here on. The caller does not hold the session's lock."""
        self._ending = True
        self._callbacks.end()
