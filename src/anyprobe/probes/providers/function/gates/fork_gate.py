"""Fork children that are to have no probes: each waits in the C library's ``fork`` until these are taken out of it.

It waits at the instruction after the system call, where all signals are blocked and nothing of the program has run in
it. Children that come by another way (``clone``, the system call itself) have probes until a look finds them. Children
of ``vfork`` and ``posix_spawn`` share the program's memory, and so its probes.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.core.errors import AnyprobeError, NoSuchProcess, TargetExited
from anyprobe.core.refusal import Refusal
from anyprobe.isa.leaf import leaf
from anyprobe.journal.installed import processes_with_splices
from anyprobe.probes.providers.function.gates.waiting_tasks import is_asleep_at, task_that_waits
from anyprobe.probes.providers.function.handlers.callbacks import Callbacks, Hit, Wait
from anyprobe.splice.apply.blocked_syscalls import Sleepers
from anyprobe.splice.apply.recovery.recovery import remove, restore_text
from anyprobe.splice.codegen.handlers.rendezvous import CALLS, Room
from anyprobe.target.process.process import Process
from anyprobe.target.system import gateway, procfs

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.splice.processes import ProcessSplicing
    from anyprobe.splice.userspace.signal_view import Place

PATIENCE = 5.0
"""Seconds that a child waits at most: others may be served before it."""
LOOKS = 0.2
"""Seconds between two looks for children that came by another way."""
_PLACES = 64
_FUNCTIONS = ("_Fork", "__libc_fork", "fork")
"""The functions of the C library in which the system call may be, the innermost first."""
_SYSCALL = b"\x0f\x05"


class ForkGate:
    """The gate of one session."""

    def __init__(self, session: "ProbeHost") -> None:
        """Nothing is placed yet."""
        self._session = session
        self._callbacks = Callbacks(session, room=Room(_PLACES, taken=True))
        self._tried: set[tuple[int, int]] = set()
        """The children that it has begun to relieve, by id and start time: each is tried once."""
        self._last_pid, self._next_look = -1, 0.0
        self._seen: frozenset[int] = frozenset()
        """Children that had probes at the last look."""
        self.freed = self.late = 0
        """How many children have been relieved before they ran on, and how many later."""
        self.failed: dict[str, int] = {}
        """Why some were not, in words, and how many."""

    def place(self, objects: "ObjectTable", function_at: "Callable[[int], Place | Refusal]") -> str:
        """Have fork children wait; return why they cannot be made to, nothing if they can."""
        libc = objects.libc()
        if libc is None:
            return "it has no C library whose fork is known"
        if self._session.process.is_filtered(CALLS):
            return "it filters its system calls"
        why = "its C library has no fork that makes a system call"
        for name in _FUNCTIONS:
            for function in libc.image.functions.lookup(name)[:1]:
                place = function_at(function.start + libc.bias)
                if isinstance(place, Refusal):
                    why = f"{name}: {place}"
                    continue
                at = _after_the_call(place)
                if at is not None:
                    (refusal,) = self._callbacks.place_inside(
                        [Wait(place, _in_the_child(), at)], self._serve, timeout=PATIENCE
                    )
                    return "" if refusal is None else f"{name}: {refusal}"
        return why

    def _serve(self, hit: Hit) -> None:
        if self._callbacks.ending:
            return
        inodes = self._session.splicing.holdings.inodes()
        tid = task_that_waits(hit.tid, inodes, self._callbacks.__contains__)
        if tid is None:
            self._note("it was not found")
            return
        self._is_new(tid)
        self._free(tid, partial(self._let_go, hit))

    def _let_go(self, hit: Hit) -> None:
        self.freed += 1
        hit.let_go()

    def _free(self, pid: int, let_go: Callable[[], object]) -> bool:
        try:
            return relieve(self._session.splicing, pid, let_go)
        except AnyprobeError as error:
            self._note(str(error))
            return False

    def _note(self, why: str) -> None:
        self.failed[why] = self.failed.get(why, 0) + 1

    def look(self) -> None:
        """Relieve children that have come by another way: those that have probes at two looks and do not wait.

        A child that is new may not have run yet, or is about to be seen where it waits.
        """
        now = time.monotonic()
        if self._callbacks.ending or now < self._next_look:
            return
        self._next_look = now + LOOKS
        last = procfs.read_last_pid()
        if last == self._last_pid and not self._seen:
            return
        self._last_pid = last
        tried = frozenset(self._tried)
        holdings = self._session.splicing.holdings
        found = processes_with_splices(holdings.inodes(), holdings.owner.start_time)
        self._tried -= {each for each in tried if each[0] not in found}
        new = [pid for pid in found if self._child(pid) not in self._tried and not self._shares_memory(pid)]
        seen, self._seen = self._seen, frozenset(new)
        for pid in new:
            if pid in seen and not self._waits(pid) and self._is_new(pid) and self._free(pid, lambda: None):
                self.late += 1

    def _is_new(self, pid: int) -> bool:
        """Return whether a child has not been tried yet, which it is from here on."""
        child = self._child(pid)
        if child is None or child in self._tried:
            return False
        self._tried.add(child)
        return True

    def _child(self, pid: int) -> tuple[int, int] | None:
        """Return a child by its id and its start time, None where it is gone."""
        with suppress(OSError):
            return pid, procfs.read_stat(pid).start_time
        return None

    def _waits(self, pid: int) -> bool:
        return is_asleep_at(pid, self._callbacks.__contains__)

    def _shares_memory(self, pid: int) -> bool:
        with suppress(OSError):
            return gateway.kcmp_vm(procfs.voice(self._session.pid), pid)
        return True

    def notes(self) -> list[str]:
        """Return what was not as wanted, in words."""
        said = [f"{count} fork children kept their probes: {why}" for why, count in self.failed.items()]
        if self.late:
            said.append(f"{self.late} children did not come by the C library's fork, and had probes for a moment")
        if (lost := sum(self._callbacks.lost().values()) - sum(self.failed.values())) > 0:
            said.append(f"{lost} fork children were not waited for, or not to the end")
        return said

    def end(self) -> None:
        """Let all children go; none waits from here on. The caller does not hold the session's lock."""
        self._callbacks.release()


def relieve(splicing: "ProcessSplicing", pid: int, let_go: Callable[[], object]) -> bool:
    """Take a session's probes out of a fork child; return whether it was still there.

    ``let_go`` is called as soon as its text is its own again.
    """
    sessions = frozenset([splicing.holdings.owner.session])
    try:
        process = Process.open(pid)
    except (NoSuchProcess, TargetExited):
        return False
    try:
        restore_text(process, sessions)
        let_go()
        remove(process, sessions, lambda: Sleepers(splicing.engine.patches()))
    except TargetExited:
        pass
    finally:
        process.close()
    return True


def _after_the_call(place: "Place") -> int | None:
    """Return the instruction after a function's first system call, if that may be the one that forks."""
    _, code = place
    for number, address in enumerate(code.addresses):
        if code.insn(number).raw == _SYSCALL:
            after = address + len(_SYSCALL)
            return after if code.insn_at(after) is not None else None
    return None


@cache
def _in_the_child() -> NativeCode:
    """Return the condition: the system call has returned 0."""
    listing = """
        mov rcx, [rdi]; xor eax, eax; test rcx, rcx; jnz short parent
        inc eax
    parent:
        ret
    """
    return leaf(listing, (Input(InputKind.REGISTER, "rax"),), clobbers="rax rcx flags")
