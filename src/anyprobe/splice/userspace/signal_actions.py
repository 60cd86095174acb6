"""The actions that SIGTRAP and the signals of faults have in the target: looked up, replaced, journalled, put back."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.journal.memfds import is_ours
from anyprobe.journal.records import FoundJournal, Record, RecordKind
from anyprobe.splice.userspace.trap_handler import SIGTRAP, SignalAction

if TYPE_CHECKING:
    from anyprobe.target.base import ProcessFacts, ProcessQuiescence, StoppedThread, SystemCalls
    from anyprobe.target.system.procfs import Mapping as MappedRange

FAULT_SIGNALS = (4, 5, 7, 8, 11)
"""SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV: what a faulting instruction raises."""
_RT_SIGACTION = 13
_MASK_BYTES = 8


def current_action(process: "ProcessFacts", remote: "SystemCalls", signal: int = SIGTRAP) -> SignalAction:
    """Return the action that a signal has in the process of the thread that makes the calls."""
    return query_actions(process, remote, 1 << signal - 1)[signal]


def set_action(remote: "SystemCalls", action: SignalAction, signal: int = SIGTRAP) -> None:
    """Set the action of a signal."""
    remote.syscall(_RT_SIGACTION, signal, remote.place(action.pack()), 0, _MASK_BYTES)


def exchange_action(
    process: "ProcessFacts", remote: "SystemCalls", action: SignalAction, signal: int = SIGTRAP
) -> SignalAction:
    """Set the action of a signal; return the one that it had until then."""
    place = remote.place(action.pack() + bytes(SignalAction.SIZE))
    remote.syscall(_RT_SIGACTION, signal, place, place + SignalAction.SIZE, _MASK_BYTES)
    return SignalAction.unpack(process.mem.read(place + SignalAction.SIZE, SignalAction.SIZE))


def query_actions(process: "ProcessFacts", remote: "SystemCalls", signals: int) -> dict[int, SignalAction]:
    """Return the actions of some signals, given as a mask."""
    place = remote.place(bytes(SignalAction.SIZE))
    found = {}
    for signal in range(1, signals.bit_length() + 1):
        if signals >> signal - 1 & 1:
            remote.syscall(_RT_SIGACTION, signal, 0, place, _MASK_BYTES)
            found[signal] = SignalAction.unpack(process.mem.read(place, SignalAction.SIZE))
    return found


def record_of(handler: int, old: SignalAction, signal: int = SIGTRAP) -> Record:
    """Return the journal's record of an action that our ``handler`` replaces."""
    rest = struct.pack("<QQ", old.flags, old.restorer)
    return Record(RecordKind.ACTION, handler, signal, old.handler, rest, struct.pack("<Q", old.mask))


def _recorded(journals: Iterable[FoundJournal], signal: int = SIGTRAP) -> dict[int, SignalAction]:
    """Return the actions of a signal in journals, by the handler that replaced them."""
    found = {}
    for journal in journals:
        for record in journal.of(RecordKind.ACTION):
            if record.size == signal and len(record.old) == 2 * len(record.new):
                flags, restorer = struct.unpack("<QQ", record.old)
                mask = int.from_bytes(record.new, "little")
                found[record.address] = SignalAction(record.extra, flags, restorer, mask)
    return found


def trapped(journals: Iterable[FoundJournal], threads: Iterable["StoppedThread"]) -> list[int]:
    """Return the threads that have met a trap, or faulted, and not yet run the handler: it has to stay until they have.

    These signals are delivered at once, so a thread that blocks one has none of anyprobe's pending.
    """
    own = [signal for signal in FAULT_SIGNALS if _recorded(journals, signal)]
    return [thread.tid for thread in threads if thread.awaits(*own)] if own else []


def has_traps(journals: Iterable[FoundJournal]) -> bool:
    """Return whether a session has set its handler for SIGTRAP."""
    return bool(_recorded(journals))


def unreached(
    stop: "ProcessQuiescence", journals: Sequence[FoundJournal], mappings: "Sequence[MappedRange]"
) -> tuple[str, ...]:
    """Return what stands in the way of ``put_back``: processes all of whose threads wait for a child by ``vfork``.

    The child, which can make calls, has actions of its own.
    """
    if not any(_in_place(journals, mappings, signal) for signal in FAULT_SIGNALS):
        return ()
    reached = {thread.pid for thread in stop.threads}
    waiting = sorted({parent.pid for parent in stop.waiting} - reached)
    return tuple(f"the signal actions of process {pid}, which waits for its child" for pid in waiting)


def put_back(
    process: "ProcessFacts",
    stop: "ProcessQuiescence",
    journals: Sequence[FoundJournal],
    mappings: "Sequence[MappedRange]",
) -> None:
    """Give signals the actions that the journals say they had, where they still have our handlers.

    Preconditions: no trap is left in the text, no thread has yet to run a handler, every process has a thread that can
    make calls. Where the program has set another action since, that one stays.
    """
    for signal in FAULT_SIGNALS:
        recorded = _in_place(journals, mappings, signal)
        for pid in sorted({thread.pid for thread in stop.threads}) if recorded else ():
            with stop.remote(pid) as remote:  # a vfork child has actions of its own
                old = replaced_action(recorded, current_action(process, remote, signal).handler)
                if old is not None:
                    set_action(remote, old, signal)


def put_back_live(
    process: "ProcessFacts", remote: "SystemCalls", journals: Sequence[FoundJournal], mappings: "Sequence[MappedRange]"
) -> None:
    """Do what ``put_back`` does while the program runs, which may be setting an action of its own."""
    for signal in FAULT_SIGNALS:
        recorded = _in_place(journals, mappings, signal)
        old = replaced_action(recorded, current_action(process, remote, signal).handler) if recorded else None
        if old is None:
            continue
        replaced = exchange_action(process, remote, old, signal)
        if replaced.handler not in recorded:
            set_action(remote, replaced, signal)  # the program's, set since we looked


def _in_place(
    journals: Sequence[FoundJournal], mappings: "Sequence[MappedRange]", signal: int
) -> dict[int, SignalAction]:
    """Return the actions of a signal that journals say our handlers have replaced, by those that are mapped."""
    return {
        handler: old
        for handler, old in _recorded(journals, signal).items()
        if any(m.start <= handler < m.end and m.executable and is_ours(m) for m in mappings)
    }


def replaced_action(recorded: Mapping[int, SignalAction], handler: int) -> SignalAction | None:
    """Return the program's action that ``handler`` stands for, ``None`` if that is not anyprobe's.

    A controller whose call failed after it took effect may have set a second handler over its first.
    """
    seen = set()
    found = None
    while handler in recorded and handler not in seen:
        seen.add(handler)
        found = recorded[handler]
        handler = found.handler
    return None if found is None or found.handler in seen else found


def blocking_thread(stop: "ProcessQuiescence", address: int, handler: range) -> Refusal | None:
    """Return a refusal if a trap at ``address`` could kill one of the stopped threads as they are.

    A thread in our ``handler`` has all signals blocked, for as long as it is there.
    """
    for thread in stop.threads:
        if thread.registers.rip not in handler and thread.blocks(SIGTRAP):
            detail = f"thread {thread.tid} has SIGTRAP blocked: a trap would kill the program"
            return Refusal(Reason.TRAP_UNSAFE, address, detail)
        if thread.pid != stop.process.pid:
            detail = f"process {thread.pid} runs in the same memory with signal actions of its own; try again"
            return Refusal(Reason.TRAP_UNSAFE, address, detail)
    for parent in stop.waiting:
        detail = f"thread {parent.tid} waits for a child in the same memory; try again"
        return Refusal(Reason.TRAP_UNSAFE, address, detail)
    return None


def blocked_now(process: "ProcessFacts") -> int:
    """Return a thread that has SIGTRAP blocked at this moment, 0 if there is none, without stopping anything."""
    return process.thread_blocking(SIGTRAP)


def unsettled_now(process: "ProcessFacts") -> int:
    """Return a thread that has SIGTRAP blocked or is about to be given one; the same otherwise."""
    return process.thread_blocking(SIGTRAP, pending=True)
