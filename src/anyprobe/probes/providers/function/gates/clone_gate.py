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
from anyprobe.probes.providers.function.gates.fork_gate import relieve
from anyprobe.probes.providers.function.gates.waiting_tasks import child_that_waits
from anyprobe.probes.providers.function.handlers.callbacks import Callbacks, Hit, Wait
from anyprobe.splice.codegen.handlers.rendezvous import CALLS, Room
from anyprobe.splice.edits import Edit
from anyprobe.splice.userspace.thread_slot import is_fresh_block

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.splice.plan.splices import Want
    from anyprobe.splice.userspace.signal_view import Place

FUNCTIONS = ("__clone", "clone")
"""The C library's function, which has several names."""
BY_NUMBER = "syscall"
"""The one that makes any system call, where the program makes tasks by it."""
PATIENCE = 10.0
"""Seconds that a thread waits at most: others may be served before it, and everything is stopped for the change."""
_PLACES = 64
_CLONE_VM, _CLONE_VFORK, _CLONE_SETTLS = 0x100, 0x4000, 0x80000
_CLONE, _CLONE3 = 56, 435
_OF_CLONE, _BY_FUNCTION, _BY_INSTRUCTION = ("rdx",), ("rdi", "rsi"), ("rax", "rdi")
"""The registers that say what is to be made: see ``_shares_memory``."""
_CLONE3_TLS = 56
"""Where what ``clone3`` is given has the thread pointer; the flags come first."""


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
        self._by_number: set[int] = set()
        """Where the functions begin that are told the system call's number."""
        self._instructions: dict[int, int | None] = {}
        """Where the program makes system calls itself of which its code does not tell which, or the numbers."""

    def place(self) -> str:
        """Have threads wait that make such a task; return why they cannot be made to, nothing if they can."""
        session = self._session
        libc = session.objects.libc()
        if libc is None:
            return "it has no C library whose clone is known"
        if session.process.is_filtered(CALLS):
            return "it filters its system calls"
        waits: dict[int, Wait] = {}
        for loaded, at in session.objects.open_calls():
            from anyprobe.binary.restrictions.open_calls import watched

            there = watched(loaded.image.elf, loaded.image.functions, at)
            found = self._function_at(there.function + loaded.bias)
            if isinstance(found, Refusal):
                return f"{at:#x} in {loaded.name}: {found}"
            registers = _BY_INSTRUCTION if there.number is None else ("rdi",)
            condition = None if there.number == _CLONE3 else _shares_memory(*registers)
            waits[there.address + loaded.bias] = Wait(found, condition, inside=there.address)
            self._instructions[there.address + loaded.bias] = there.number
        by_number = (BY_NUMBER,) if session.objects.makes_tasks_by_number() else ()
        for name in (*FUNCTIONS, *by_number):
            for function in libc.image.functions.lookup(name):
                found = self._function_at(function.start + libc.bias)
                if isinstance(found, Refusal):
                    return f"{name}: {found}"
                registers = _BY_FUNCTION if name == BY_NUMBER else _OF_CLONE
                waits[function.start + libc.bias] = Wait(found, _shares_memory(*registers))
                if name == BY_NUMBER:
                    self._by_number.add(function.start + libc.bias)
        if not waits or (by_number and not self._by_number):  # of a stripped program only instructions are known
            return "its C library has no clone"
        edits, hooks = self._callbacks.edits_inside([*waits.values()], self._serve, timeout=PATIENCE)
        session.splicing.engine.change(edits)
        self._placed = [(edit, want) for edit in edits for want in edit.added if want.tag in hooks]
        return next((str(hook.refusal) for hook in hooks if hook.refusal is not None), "")

    def lift(self) -> None:
        """Have no thread of the program itself come here any more; its fork children do."""
        edits = [Edit(edit.module, edit.state.root, removed=[want]) for edit, want in self._placed]
        self._session.splicing.engine.change(edits)

    def _serve(self, hit: Hit) -> None:
        flags, pointer = self._asked(hit)
        shares = flags & _CLONE_SETTLS or (flags & _CLONE_VM and not flags & _CLONE_VFORK)
        if self.is_ending or not shares:
            return
        if flags & _CLONE_SETTLS and self._is_made_as_threads_are(hit, pointer):
            return
        inodes = self._session.splicing.holdings.inodes()
        child = child_that_waits(self._session.pid, hit.tid, inodes, self._callbacks.__contains__)
        if child is None:
            self._comes()
            return
        self._relieved += relieve(self._session.splicing, child, hit.let_go)

    def _asked(self, hit: Hit) -> tuple[int, int]:
        """Return the flags of the task that is about to be made, and its thread pointer; none that cannot be read."""
        regs = hit.regs
        if hit.ip in self._instructions:
            known = self._instructions[hit.ip]
            number, first, pointer = regs.rax if known is None else known, regs.rdi, regs.r8
        elif hit.ip in self._by_number:
            number, first, pointer = regs.rdi, regs.rsi, regs.r9
        else:
            number, first, pointer = _CLONE, regs.rdx, regs.r9
        if number & 0xFFFFFFFF == _CLONE:
            return first, pointer
        try:
            words = hit.read(first, _CLONE3_TLS + 8)
        except MemoryFault:
            return 0, 0  # the kernel will not be able to read it either
        return int.from_bytes(words[:8], "little"), int.from_bytes(words[_CLONE3_TLS:], "little")

    def _is_made_as_threads_are(self, hit: Hit, pointer: int) -> bool:
        holdings = self._session.splicing.holdings
        try:
            slots = [(bank.slot, range(bank.piece.address, bank.piece.end)) for bank in holdings.banks]
            return is_fresh_block(hit.read, pointer, slots)
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
def _shares_memory(*registers: str) -> NativeCode:
    """Return the condition: the task shares the memory, and its maker does not wait for it, or it gets a pointer.

    ``registers`` have the flags, or the system call's number and what it is told first: of ``clone3`` that is where it
    is said what is to be made.
    """
    by_number = f"""
        mov ecx, [rdi]; xor eax, eax
        cmp ecx, {_CLONE3}; je short shares
        cmp ecx, {_CLONE}; jne short out
        mov rcx, [rdi+8]
    """
    listing = f"""
        {by_number if len(registers) > 1 else "mov rcx, [rdi]; xor eax, eax"}
        test ecx, {_CLONE_SETTLS}; jnz short shares
        test ecx, {_CLONE_VM}; jz short out
        test ecx, {_CLONE_VFORK}; jnz short out
    shares:
        inc eax
    out:
        ret
    """
    return leaf(listing, tuple(Input(InputKind.REGISTER, each) for each in registers), clobbers="rax rcx flags")
