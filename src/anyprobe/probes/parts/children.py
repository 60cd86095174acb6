"""Where threads wait as they execute programs and fork, and what has become of fork children."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.errors import TargetError
from anyprobe.probes.duties import locked
from anyprobe.probes.parts.decorators import Decorators
from anyprobe.probes.parts.modules import ModuleReconciler
from anyprobe.probes.parts.timing import CallEnds
from anyprobe.probes.target_errors import typed

if TYPE_CHECKING:
    from anyprobe.probes.following.follower import Follower
    from anyprobe.probes.providers.function.forks.ended_children import EndedChildren
    from anyprobe.probes.providers.function.gates.exec_gate import ExecGate
    from anyprobe.probes.providers.function.gates.fork_gate import ForkGate
    from anyprobe.probes.providers.function.host import ProbeHost


class Gates:
    """The gates of one session, and what is done for a thread that waits at one."""

    def __init__(self, host: "ProbeHost", modules: ModuleReconciler) -> None:
        """Have no thread wait yet."""
        self._host, self._modules = host, modules
        self._execs: ExecGate | None = None
        self.forks: ForkGate | None = None
        self.follower: Follower | None = None
        """What follows the programs that the process executes."""

    def follow(self, follower: "Follower | None") -> None:
        """Have a follower told of the programs that are executed from now on."""
        self.follower = follower

    def watch_execs(self) -> None:
        """Have threads wait that execute another program, where programs are followed; say so if they cannot."""
        if not self._host.has_gates:
            return
        self._host.children.begin()
        self._watch_forks()
        with self.watching_execs():
            pass

    @contextmanager
    def watching_execs(self) -> Iterator[None]:
        """Do so in one change with what is armed within a ``with`` block."""
        host = self._host
        follower = self.follower
        if (
            follower is None
            or not host.has_gates
            or self._execs is not None
            or host.awaits_libraries
            or self._modules.is_placing_once
        ):
            yield
            return
        from anyprobe.probes.providers.function.gates.exec_gate import ExecGate

        gate = self._execs = ExecGate(host, partial(follower.executes, host, waits_at=self.waits_at))
        with typed(host.process, "arming probes in"):
            edits = gate.edits(host.objects, host.handler_watch.function_at)
            with host.functions.joining(edits):
                yield
        follower.watches(host)
        for each in gate.refusals():
            host.warn(f"programs that {host.exe} executes are not seen, since {each}")

    def _watch_forks(self) -> None:
        """Have fork children wait, where they are to have no probes; say so if they cannot."""
        host = self._host
        if host.options.children != "free" or self.forks is not None:
            return
        if host.awaits_libraries or self._modules.is_placing_once:
            return
        from anyprobe.probes.providers.function.gates.fork_gate import ForkGate

        self.forks = ForkGate(host)
        with typed(host.process, "arming probes in"):
            why = self.forks.place(host.objects, host.handler_watch.function_at)
        if why:
            host.warn(f"fork children keep their probes until they are looked for, since {why}")

    def look_for_forked(self) -> None:
        """Relieve fork children of their probes that did not wait for that."""
        if self.forks is not None:
            with suppress(TargetError):
                self.forks.look()

    def waits_at(self, address: int) -> bool:
        """Return whether threads that are about to execute sleep at an address."""
        return self._execs is not None and address in self._execs

    def missed_execs(self) -> int:
        """Return how many threads that executed were not waited for, or not to the end."""
        return 0 if self._execs is None else self._execs.missed()

    def follow_no_more(self) -> None:
        """Let threads go that are about to execute; the caller does not hold the lock."""
        if self._execs is not None:
            self._execs.end()

    def end(self) -> None:
        """Have no thread wait any more; the caller does not hold the lock."""
        host = self._host
        self.follow_no_more()
        if self.forks is not None:
            self.look_for_forked()
            self.forks.end()
            host.warn(*self.forks.notes())


class ChildWatch:
    """The fork children that count, and those that have ended."""

    def __init__(
        self, host: "ProbeHost", handlers: Decorators, calls: CallEnds, modules: ModuleReconciler, gates: Gates
    ) -> None:
        """Have seen no child yet."""
        self._host, self.lock = host, host.lock
        self._handlers, self._calls, self._modules, self._gates = handlers, calls, modules, gates
        self._taken: dict[object, tuple[int, int]] = {}

    @locked
    def look(self) -> None:
        """Learn which processes the fork children are that have begun to count, as long as they are there."""
        host = self._host
        if host.closed:
            return
        from anyprobe.probes.providers.function.reading import BankValues

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

    def look_for_new(self) -> None:
        """Learn which processes the fork children are that have begun to count since, and look at nothing else."""
        from anyprobe.probes.providers.function.reading import forked_alone

        host = self._host
        with host.lock:
            for bank in () if host.closed else host.splicing.holdings.banks:
                self._taken[bank], there = forked_alone(bank, self._taken.get(bank, (0, 0)))
                host.children.note(bank, there)

    @Lazy
    def _ended(self) -> "EndedChildren":
        from anyprobe.probes.providers.function.forks.ended_children import EndedChildren

        return EndedChildren()

    def _forget(self, copy: int) -> None:
        """Give up the data of calls that a fork child was in when it ended."""
        if (handling := self._handlers.used) is not None:
            handling.forget_child(copy)
