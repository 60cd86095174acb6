"""What has become of fork children: the part of a session that looks."""

from typing import TYPE_CHECKING

from anyprobe.core.lazily import Lazy
from anyprobe.probes.duties import locked
from anyprobe.probes.handlers.decorators import Decorators
from anyprobe.probes.parts.call_ends import CallEnds
from anyprobe.probes.parts.gates import Gates
from anyprobe.probes.parts.modules import ModuleReconciler

if TYPE_CHECKING:
    from anyprobe.probes.ended_children import EndedChildren
    from anyprobe.probes.host import ProbeHost


class ChildWatch:
    """The fork children that count, and those that have ended."""

    def __init__(
        self, host: "ProbeHost", handlers: Decorators, calls: CallEnds, modules: ModuleReconciler, gates: Gates
    ) -> None:
        """Have seen no child yet."""
        self._host, self.lock = host, host.lock
        self._handlers, self._calls, self._modules, self._gates = handlers, calls, modules, gates

    @locked
    def look(self) -> None:
        """Learn which processes the fork children are that have begun to count, as long as they are there."""
        host = self._host
        if host.closed:
            return
        from anyprobe.probes.reading import BankValues

        self._gates.look_for_forked()
        self._modules.look_at_fork_children()
        if host.options.by_thread:
            host.thread_names.look([host.pid, *(pid for pid, _ in host.children.alive())])
        values, handling = BankValues(), self._handlers.used
        holdings = host.splicing.holdings
        for bank in (*holdings.banks, *holdings.goroutine_banks):
            reader = values.reader(bank)
            host.children.note(bank, reader.forked())
            if reader.copies:
                inodes = holdings.inodes()
                self._ended.look(bank, reader, host.children, inodes, self._forget)
                if handling is not None and handling.has_pools:
                    never_seen = host.children.never_seen(bank, reader.copies)
                    gone = self._ended.unmapped(bank, never_seen, inodes)
                    host.children.told(bank, gone)
                    for child in (*host.children.ended(bank, reader.copies), *gone):
                        self._forget(child.number + 1)
        if self._calls.used is not None and not host.detached:
            self._calls.used.look_at_children()

    @Lazy
    def _ended(self) -> "EndedChildren":
        from anyprobe.probes.ended_children import EndedChildren

        return EndedChildren()

    def _forget(self, copy: int) -> None:
        """Give up the data of calls that a fork child was in when it ended."""
        if (handling := self._handlers.used) is not None:
            handling.forget_child(copy)
