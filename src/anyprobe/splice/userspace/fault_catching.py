"""Faults in displaced instructions that a probe waits for: who sees the signal first.

Where the program handles the signal itself, the splice at its handler's entry does (``signalview``), and no action
changes. Where the signal has its default action there is no handler to ask: an anyprobe handler (``faulthandler``) is
set, which the journal lists first, and the action comes back with the rest when the session ends.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit, hook_of
from anyprobe.splice.regions.access import Access
from anyprobe.splice.userspace.signal_actions import query_actions, record_of, set_action

if TYPE_CHECKING:
    from anyprobe.splice.userspace.signal_view import SignalView
    from anyprobe.splice.userspace.trap_handler import SignalAction
    from anyprobe.target.base import SystemCalls

SIGNALS = (4, 7, 8, 11)
"""SIGILL, SIGBUS, SIGFPE, SIGSEGV."""
_BITS = sum(1 << signal - 1 for signal in SIGNALS)


class FaultCatching:
    """Sees to it that faults which probes wait for come to them."""

    def __init__(self, access: Access, *, live: bool) -> None:
        """Do nothing yet; ``live``: nothing may be stopped for it."""
        self._access, self._live = access, live
        self.wanted = False
        """Whether any probe waits for faults."""
        self._handlers: set[int] = set()

    def look(self, edits: Sequence[Edit]) -> None:
        """Take note of what is wanted, before anything is planned."""
        self.wanted = self.wanted or any(_catches(edit) for edit in edits)

    def install(self, edits: Sequence[Edit], view: "SignalView") -> "Sequence[tuple[Edit, Refusal]]":
        """Have the signals come to us first; return the edits for which that cannot be, and why."""
        catching = [edit for edit in edits if edit.plan.splices and _catches(edit)] if self.wanted else []
        if not catching:
            return ()
        why = self._objection() or self._set_handlers(view)
        return [(edit, why) for edit in catching] if why is not None else ()

    def _objection(self) -> Refusal | None:
        if self._live:
            return Refusal(Reason.NEEDS_STOP, 0, "fault handlers are not armed without a stop")
        return None

    def _set_handlers(self, view: "SignalView") -> Refusal | None:
        access, process = self._access, self._access.process
        shows = access.holdings.code_regions[0].view_code(view.root).view  # before the stop: the text takes time
        with access.stop("prepare") as stop, stop.remote(process.pid) as remote:
            actions = query_actions(process, remote, _BITS)
            refusal = next(self._unseen(actions.items(), view), None)
            if refusal is None:
                for signal, action in actions.items():
                    if not action.is_handler:
                        self._set(remote, signal, action, shows)
        return refusal

    def _unseen(self, actions: "Iterable[tuple[int, SignalAction]]", view: "SignalView") -> "Iterator[Refusal]":
        """Yield why faults would not come to us where the program handles them itself."""
        for signal, action in actions:
            if not action.is_handler or action.handler in self._handlers:
                continue
            hook = view.hooks.get(action.handler)
            known = view.refused.get(action.handler) if hook is None else hook.refusal
            if hook is None or known is not None:
                detail = f"the program's own handler of signal {signal} at {action.handler:#x} cannot be spliced"
                yield Refusal(Reason.MAY_FAULT, action.handler, f"{detail}: {known}" if known else detail)

    def _set(self, remote: "SystemCalls", signal: int, old: "SignalAction", view: int) -> None:
        from anyprobe.splice.userspace.fault_handler import FAULT_HANDLER_BYTES, assemble_fault_handler

        holdings = self._access.holdings
        home = next(home for home in holdings.code_regions if home.room() >= FAULT_HANDLER_BYTES)
        handler = assemble_fault_handler(home.cursor, view, old)
        home.put(handler.code)
        journal = next(journal for journal in holdings.journals() if journal.room())
        journal.add([record_of(handler.entry, old, signal)])
        set_action(remote, handler.action(), signal)
        self._handlers.add(handler.entry)


def _catches(edit: Edit) -> bool:
    for want in edit.added:
        hook = hook_of(want)
        if hook is not None and hook.kind is ActionKind.FAULT:
            return True
    return False
