"""Where a program executes another one it waits a moment, until the controller traces the thread that does.

All of glibc's ``exec`` functions, ``posix_spawn``, ``system`` and ``popen`` come through ``execve``; ``execveat`` and
``fexecve`` make their call themselves, and so does ``syscall``. musl's are alike. Code elsewhere that makes the system
call itself waits where it loads its number, Go code, too. Fork children wait as well, and those that borrow their
parent's memory: places to wait in are taken by turns, not by numbers of threads, which these do not have. No thread
waits if the controller is gone.
"""

import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from anyprobe.binary.restrictions.raw_calls import EXECUTING
from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.core.refusal import Refusal
from anyprobe.isa.leaf import leaf
from anyprobe.probes.providers.function.gates.sampling import Sample
from anyprobe.probes.providers.function.handlers.callbacks import Callbacks, Hit, Wait
from anyprobe.splice.codegen.handlers.rendezvous import CALLS, Room

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.splice.edits import Edit
    from anyprobe.splice.regions.banks import Hook
    from anyprobe.splice.userspace.signal_view import Place

PATIENCE = 10.0
"""Seconds that a thread waits at most: others may be served before it."""
PLACES = 256
"""How many threads of a program and of its children may wait at once."""
FUNCTIONS = ("execve", "execveat", "fexecve")
"""The functions of the C library in which the system calls are made."""
ANY_CALL = "syscall"
"""The function of the C library that makes whatever system call it is given."""
ITSELF = ""
"""Code that makes the system call itself: what is executed is known at the call only."""


class ExecGate:
    """The gate of one session."""

    def __init__(self, session: "ProbeHost", serve: Callable[[str, Hit, bool], object]) -> None:
        """Nothing is placed yet.

        ``serve`` is called with the function's name, or ``ITSELF``, and whether the execution is to be followed, in the
        thread that serves the gate.
        """
        self._session, self._serve = session, serve
        self._callbacks = Callbacks(session, room=Room(PLACES, taken=True))
        self._sample = Sample(PATIENCE, PLACES, time.monotonic())
        self._names: dict[int, str] = {}
        """The functions, by where threads wait."""
        self._why: list[str] = []
        self._hooks: dict[str, Hook] = {}

    def edits(self, objects: "ObjectTable", function_at: "Callable[[int], Place | Refusal]") -> "list[Edit]":
        """Return the edits by which threads wait that execute; ``refusals`` says afterwards where they cannot."""
        if self._session.process.is_filtered(CALLS):
            return self._refuse("it filters its system calls")
        library = objects.c_library()
        why = self._why
        named: dict[str, Place] = {}
        for name in (*FUNCTIONS, ANY_CALL) if library is not None else ():
            assert library is not None
            for function in library.image.functions.lookup(name)[:1]:
                found = function_at(function.start + library.bias)
                if isinstance(found, Refusal):
                    why.append(f"{name}: {found}")
                else:
                    named[name] = found
        inside = {code.entry + module.bias for module, code in named.values()}
        own: list[tuple[Place, int]] = []
        for loaded, at, _ in objects.own_calls(EXECUTING):
            maker = loaded.image.functions.containing(at)
            if maker is not None and maker.start + loaded.bias in inside:
                continue
            if objects.is_loader(loaded):  # which executes on demand of its own command line alone
                continue
            place = None if maker is None else function_at(maker.start + loaded.bias)
            if place is None or isinstance(place, Refusal) or place[1].insn_at(at) is None:
                why.append(f"{loaded.name}+{at:#x}: {place or 'in no function that is known'}")
            else:
                own.append((place, at))
        if not named and not own and not why:
            return self._refuse("no place is known where it could")
        waits = {name: Wait(place, _executes() if name == ANY_CALL else None) for name, place in named.items()}
        self._names = {
            code.entry + module.bias: ITSELF if name == ANY_CALL else name for name, (module, code) in named.items()
        }
        waits |= {f"{place[0].name}+{at:#x}": Wait(place, inside=at) for place, at in own}
        self._names |= {at + module.bias: ITSELF for (module, _), at in own}
        if not waits:
            return []
        edits, hooks = self._callbacks.edits_inside(list(waits.values()), self._serve_hit, timeout=PATIENCE)
        self._hooks = dict(zip(waits, hooks, strict=True))
        return edits

    def _refuse(self, why: str) -> "list[Edit]":
        self._why.append(why)
        return []

    def refusals(self) -> list[str]:
        """Return where threads cannot be made to wait, and why."""
        refused = [f"{name}: {hook.refusal}" for name, hook in self._hooks.items() if hook.refusal is not None]
        return self._why + refused

    def __contains__(self, address: int) -> bool:
        """Return whether threads sleep at an address of the program's memory."""
        return address in self._callbacks

    def _serve_hit(self, hit: Hit) -> None:
        if self._callbacks.ending:
            return
        began = time.monotonic()
        takes = self._sample.takes(self._callbacks.waiting, began)
        self._serve(self._names[hit.ip], hit, takes)
        self._sample.note(time.monotonic() - began, taken=takes)

    def missed(self) -> int:
        """Return how many threads were not waited for, or not to the end."""
        return sum(self._callbacks.lost().values())

    def end(self) -> None:
        """Let all threads go; none waits from here on. The caller does not hold the session's lock."""
        self._callbacks.release()


@cache
def _executes() -> NativeCode:
    """Return the condition: the system call that ``syscall`` is to make executes a program."""
    first, second = EXECUTING
    listing = f"""
        mov ecx, [rdi]; mov eax, 1
        cmp ecx, {first}; je short out
        cmp ecx, {second}; je short out
        xor eax, eax
    out:
        ret
    """
    return leaf(listing, (Input(InputKind.REGISTER, "rdi"),), clobbers="rax rcx flags")
