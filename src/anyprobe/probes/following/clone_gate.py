"""Where a program makes a task by ``clone`` it waits, until nothing uses the memory that threads have of their own.

What is timed, and most handlers, find a thread's memory by its thread pointer. A task that shares the memory of the
program (``CLONE_VM``) has the thread pointer of its maker, or one that may lead anywhere (``CLONE_SETTLS``): before the
first of them begins to run, whatever goes by thread pointers is taken out. Children of vfork are not meant: their maker
waits for them; nor are those that have memory of their own, nor threads that get a control block as glibc makes it.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.core.memory import MemoryFault
from anyprobe.core.refusal import Refusal
from anyprobe.core.wording import times
from anyprobe.isa.leaf import leaf
from anyprobe.probes.following.fork_gate import relieve
from anyprobe.probes.following.waiting_tasks import child_that_waits
from anyprobe.probes.handlers.callbacks import Callbacks, Hit, Wait
from anyprobe.splice.codegen.handlers.rendezvous import CALLS, Room
from anyprobe.splice.edits import Edit
from anyprobe.splice.userspace.thread_slot import is_fresh_block

if TYPE_CHECKING:
    from anyprobe.probes.host import ProbeHost
    from anyprobe.splice.plan.splices import Want
    from anyprobe.splice.userspace.signal_view import Place

FUNCTIONS = ("__clone", "clone")
"""The C library's function, which has several names."""
PATIENCE = 10.0
"""Seconds that a thread waits at most: others may be served before it, and everything is stopped for the change."""
_PLACES = 64
_CLONE_VM, _CLONE_VFORK, _CLONE_SETTLS = 0x100, 0x4000, 0x80000


class CloneGate:
    """The gate of one session."""

    def __init__(
        self, session: "ProbeHost", function_at: "Callable[[int], Place | Refusal]", comes: Callable[[], object]
    ) -> None:
        """Nothing is placed yet; ``comes`` is called before such a task is made, in the thread that serves."""
        self._session, self._function_at, self._comes = session, function_at, comes
        self._callbacks = Callbacks(session, room=Room(_PLACES, taken=True))
        self.is_ending = False
        """Whether no thread waits any more."""
        self._relieved = 0
        self._placed: list[tuple[Edit, Want]] = []

    def place(self) -> str:
        """Have threads wait that make such a task; return why they cannot be made to, nothing if they can."""
        session = self._session
        libc = session.objects.libc()
        if libc is None:
            return "it has no C library whose clone is known"
        if session.process.is_filtered(CALLS):
            return "it filters its system calls"
        places: dict[int, Place] = {}
        for name in FUNCTIONS:
            for function in libc.image.functions.lookup(name):
                found = self._function_at(function.start + libc.bias)
                if isinstance(found, Refusal):
                    return f"{name}: {found}"
                places[function.start] = found
        if not places:
            return "its C library has no clone"
        waits = [Wait(place, _shares_memory()) for place in places.values()]
        edits, hooks = self._callbacks.edits_inside(waits, self._serve, timeout=PATIENCE)
        session.splicing.engine.change(edits)
        self._placed = [(edit, want) for edit in edits for want in edit.added if want.tag in hooks]
        return next((str(hook.refusal) for hook in hooks if hook.refusal is not None), "")

    def lift(self) -> None:
        """Have no thread of the program itself come here any more; its fork children do."""
        edits = [Edit(edit.module, edit.state.root, removed=[want]) for edit, want in self._placed]
        self._session.splicing.engine.change(edits)

    def _serve(self, hit: Hit) -> None:
        if self.is_ending or (hit.regs.rdx & _CLONE_SETTLS and self._is_made_as_threads_are(hit, hit.regs.r9)):
            return
        inodes = self._session.splicing.holdings.inodes()
        child = child_that_waits(self._session.pid, hit.tid, inodes, self._callbacks.__contains__)
        if child is None:
            self._comes()
            return
        self._relieved += relieve(self._session.splicing, child, hit.let_go)

    def _is_made_as_threads_are(self, hit: Hit, pointer: int) -> bool:
        holdings = self._session.splicing.holdings
        try:
            return is_fresh_block(hit.read, pointer, [bank.slot for bank in holdings.banks])
        except MemoryFault:
            return False

    def notes(self) -> list[str]:
        """Return in words what is to be said of what has come here."""
        said = []
        if self._relieved:
            children = "a fork child" if self._relieved == 1 else f"{self._relieved} fork children"
            said.append(
                f"probes were taken out of {children} before it made a task that has no thread pointer of its own"
            )
        if late := sum(self._callbacks.lost().values()):
            said.append(
                f"{times(late)} a task may have been made by clone before probes were taken out: what they say is wrong"
            )
        return said

    def end(self) -> None:
        """Let all threads go; none waits from here on. The caller does not hold the session's lock."""
        self.is_ending = True
        self._callbacks.end()


@cache
def _shares_memory() -> NativeCode:
    """Return the condition: the task shares the memory, and its maker does not wait for it or gives it a pointer."""
    listing = f"""
        mov rcx, [rdi]; xor eax, eax
        test ecx, {_CLONE_VM}; jz short out
        test ecx, {_CLONE_SETTLS}; jnz short shares
        test ecx, {_CLONE_VFORK}; jnz short out
    shares:
        inc eax
    out:
        ret
    """
    return leaf(listing, (Input(InputKind.REGISTER, "rdx"),), clobbers="rax rcx flags")
