"""Programs that are followed: the sessions on them, on their fork children's programs, and on what these execute.

A program that executes another one is a new *generation*: a session of its own, with the same probes, armed before the
new program's first instruction. The old one's counts stay.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from anyprobe.binary.images.modules import images_shared
from anyprobe.core.checkpoints import interruptible
from anyprobe.core.errors import AnyprobeError, Interrupted, TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.core.wording import times
from anyprobe.data.snapshots.last_results import results_at_end
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.journal.installed import processes_with_splices
from anyprobe.probes.duties import Attended, Duties, duties_of
from anyprobe.probes.following.strays import Strays
from anyprobe.probes.group import SessionGroup
from anyprobe.probes.options import OptionNames, SessionOptions, chosen
from anyprobe.probes.providers.function.gates.exec_gate import ITSELF
from anyprobe.probes.providers.function.gates.waiting_tasks import task_that_waits
from anyprobe.probes.providers.function.removal import forget_places
from anyprobe.probes.session import Session
from anyprobe.probes.specs.spec import Spec, parsed
from anyprobe.probes.target_errors import refuse_emulated, typed
from anyprobe.target.process.execution import Unfollowed, follow_execution
from anyprobe.target.process.next_program import AT_EMPTY_PATH, NextProgram, next_program, program_of
from anyprobe.target.process.process import Process
from anyprobe.target.system import procfs
from anyprobe.target.system.memory import TargetMemory

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.handlers.callbacks import Hit
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.target.system.ptrace import Registers

_TIMEOUT = 8.0
"""Seconds from a thread's release to its call."""
_SWEEPS = 0.2
"""Seconds between two looks for programs that have ended."""
_UNEXPECTED = "its execution was not seen beforehand"
_OVER = "the session has ended before its probes were placed"
_FUNCTION_OF = {59: "execve", 322: "execveat"}
Prepare = Callable[[Session], object]


@dataclass(eq=False)
class Member:
    """One program that one process runs or has run."""

    session: Session | None
    """None once it has ended and what it counted is kept."""
    pid: int
    generation: int
    result: Snapshot | None = None


class _Living(Sequence[Attended]):
    """The loops of the sessions on programs that run, whichever these are when it is asked."""

    def __init__(self, group: SessionGroup) -> None:
        self._group = group

    def __len__(self) -> int:
        return len(self._group.sessions)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - one or several
        found = self._group.sessions[index]
        return [each.host.loop for each in found] if isinstance(found, Sequence) else found.host.loop


class Followed(SessionGroup):
    """Sessions on programs and on whatever they execute; it grows by itself.

    ``with Followed.run(["make"]) as tree: tree.count("libc:malloc"); tree.go(); tree.wait(); print(tree.snapshot())``
    """

    def __init__(
        self, sessions: Sequence[Session], options: SessionOptions, prepare: Prepare | None = None
    ) -> None:  # fmt: skip
        """Follow what sessions are on; ``prepare`` places the probes in each new program, which is held meanwhile."""
        super().__init__(sessions)
        self.finish: Callable[[Session], Snapshot] = results_at_end
        """Ends a session on a program that has ended, and returns its results."""
        self.checkpoint: Callable[[], None] = lambda: None
        """Called now and then while probes are placed in new programs: what it raises ends that, and these run on."""
        self._sharing = ExitStack()
        self._sharing.enter_context(images_shared())
        self._options = options
        self._prepare = prepare or self._ask_again
        self._asked: list[Prepare] = []
        self._guard = threading.RLock()
        self._ending = False
        self._coming: list[int] = []
        """The processes of which a new program is being made a member."""
        self._members = [Member(each, each.pid, 1) for each in sessions]
        self.unprobed: Counter[tuple[str, str]] = Counter()
        """How often a program was executed that was left alone, by its path and the reason."""
        self.unseen = self._missed = self._adopted = self._passed = 0
        """How often a program may have been executed and could not be held at its start."""
        self._strays = Strays(lambda path: self._leave(path, _UNEXPECTED), of_children=options.children == "count")
        for each in sessions:
            each.host.gates.follow(self)

    @classmethod
    def attach(cls, pids: Sequence[int], options: SessionOptions | None = None, **changes: Unpack[OptionNames]) -> Self:
        """Open a session on each process, and follow what they execute from the first probe on.

        Args:
            pids: the processes; one that is named twice counts once.
            options: how to probe, see ``SessionOptions``.
            changes: the same options one by one.
        """
        settings = chosen(options, changes)
        with images_shared():
            return cls(SessionGroup.attach(pids, settings).sessions, settings)

    @classmethod
    def run(
        cls, argv: Sequence[str], options: SessionOptions | None = None, **settings: Any  # noqa: ANN401 - as ``run``
    ) -> Self:  # fmt: skip
        """Start a program, held before its first instruction, and follow what it executes; ``resume`` lets it go.

        Args:
            argv: the program and its arguments.
            options: how to probe, see ``SessionOptions``.
            settings: as for ``anyprobe.run``.
        """
        from anyprobe.probes.opening import run

        changes = {name: settings.pop(name) for name in list(settings) if name in OptionNames.__annotations__}
        chosen_options = chosen(options, changes)  # type: ignore[arg-type] # just those
        with images_shared():
            return cls([run(argv, chosen_options, **settings)], chosen_options)

    # -- probes

    def count(self, *specs: str | Spec, follow: bool | None = None) -> "list[Probe]":
        """Count hits in all programs, and in those that are executed later.

        Args:
            specs: as for ``Session.count``; in later programs they may mean nothing.
            follow: as for ``Session.count``.
        """
        wanted = parsed(specs)
        return self._ask(lambda session: session.count(*wanted, follow=follow))

    def time(self, *specs: str | Spec, follow: bool | None = None) -> "list[Probe]":
        """Measure how long functions take, in all programs and in those that are executed later.

        Args:
            specs: as for ``Session.time``; in later programs they may mean nothing.
            follow: as for ``Session.time``.
        """
        wanted = parsed(specs)
        return self._ask(lambda session: session.time(*wanted, follow=follow))

    def _ask(self, arm: "Callable[[Session], list[Probe]]") -> "list[Probe]":
        with self._guard:
            probes = self._together(arm)
            self._asked.append(arm)
        return probes

    def _in_all(self, name: str, specs: tuple[Spec, ...], settings: dict[str, Any]) -> Callable[[Any], Any]:
        place = super()._in_all(name, specs, settings)

        def decorate(function: Any) -> Any:  # noqa: ANN401 - a handler
            with self._guard:
                place(function)
                self._asked.append(lambda session: getattr(session, name)(*specs, **settings)(function))
            return function

        return decorate

    def _ask_again(self, session: Session) -> None:
        for ask in list(self._asked):
            ask(session)

    # -- results

    def snapshots(self) -> list[Snapshot]:
        """Return what each program has counted, those that have ended too, in the order in which they began."""
        with self._guard:
            members = list(self._members)
        return [self._snapshot_of(each) for each in members]

    def _snapshot_of(self, member: Member) -> Snapshot:
        with self._guard:
            if member.session is None:
                assert member.result is not None
                return member.result
            session = member.session
        return session.snapshot()

    def notes(self) -> list[str]:
        """Return what could not be followed, in words."""
        self._strays.catch_up()
        with self._guard:
            said = [
                f"{path} was executed {times(count)} without probes: {why}"
                for (path, why), count in sorted(self.unprobed.items())
            ]
            unseen = self.unseen + self._missed
            unseen += sum(each.session.host.gates.missed_execs() for each in self._members if each.session is not None)
            refused = sum(count for (_, why), count in self.unprobed.items() if why != _UNEXPECTED)
            strays = sum(self.unprobed.values()) - refused
            adopted, passed = self._adopted, self._passed
            left = 0 if self._strays.sees_all else passed  # some of these calls may have failed
            missed = max(self._strays.settled - adopted - refused, strays, left)
        if not self._strays.sees_all and unseen:
            said.append(f"{times(unseen)} a program may have been executed that could not be held at its start")
            missed = max(missed, unseen)
        if (refused or missed) and (adopted or self._strays.seen or unseen):
            total = adopted + refused + missed
            by = "seen by the kernel" if self._strays.sees_all else "known of, since the kernel does not tell of all"
            fate = f"{adopted} probed, {refused} refused, {missed} missed"
            if passed:
                one_in = max(round((adopted + passed) / max(adopted, 1)), 2)
                fate += f"; they came faster than probes are placed: 1 in {one_in} was followed, chosen by chance"
            said.append(f"{total} {'execution' if total == 1 else 'executions'} {by}: {fate}")
        return said

    # -- life

    def begin(self) -> None:
        """Look for processes from now on, where such are followed as appear later."""

    def resume(self) -> None:
        """Let a program go that was started by ``run``."""
        for each in self.sessions:
            each.resume()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end of the first process; return its wait status if it is a child of this process.

        Args:
            timeout: seconds after which this returns ``None``; without it, however long it takes.
        """
        root = self._members[0].session
        return None if root is None else root.wait(timeout)

    @property
    def exit_status(self) -> int | None:
        """The wait status of the first process, where it is a child of this one and has ended."""
        return self._members[0].session.exit_status if self._members[0].session is not None else None

    def duties(self) -> Duties:
        """Return a table of what is due in all programs, for callers that wait themselves."""
        duties = duties_of(_Living(self))
        duties.every(_SWEEPS, self.sweep, first=_SWEEPS)
        return duties

    def sweep(self) -> None:
        """Close the sessions of programs that have ended and left no process with their memory; keep their results."""
        with self._guard:
            over = [each for each in self._members if each.session is not None and self._is_over(each.session)]
            over = [each for each in over if each is not self._members[0]]
        holdings = [each.session.splicing.holdings for each in over if each.session is not None]
        inodes = frozenset(inode for each in holdings for inode in each.inodes())
        since = min((each.fresh_since for each in holdings), default=0)
        holders = processes_with_splices(inodes, since) if inodes else []
        for each, held in zip(over, holdings, strict=True):
            if holders and processes_with_splices(held.inodes(), held.fresh_since):
                continue
            held.is_nowhere = True
            self._close(each)

    def _close(self, member: Member) -> None:
        session = member.session
        assert session is not None
        result = None
        with suppress(TargetError):
            result = self.finish(session)
        self._missed += session.host.gates.missed_execs()
        with suppress(TargetError):
            session.close()
        with self._guard:
            member.result, member.session = result or session.snapshot(), None
            self.sessions = tuple(each for each in self.sessions if each is not session)
        forget_places(session.splicing, session.probes)

    def _is_over(self, session: Session) -> bool:
        return session.pid not in self._coming and (session.exited or session.host.became() is not None)

    def remaining(self) -> list[int]:
        """Return the processes that have probes of these sessions now, or are about to: fork children included."""
        while True:
            coming, inodes = set(self._coming), self._inodes()
            found = coming | set(processes_with_splices(inodes)) | set(self._coming)
            if self._inodes() == inodes:  # else one that was about to be probed may have been overlooked
                return sorted(found)

    def _inodes(self) -> frozenset[int]:
        """Return the files that the probes' memory of now is mapped from."""
        return frozenset(inode for each in self.sessions for inode in each.splicing.holdings.inodes())

    def has_followed(self, session: Session) -> bool:
        """Return whether there is a session on what a session's process has become, or one is about to be opened."""
        with self._guard:
            at = next((number for number, each in enumerate(self._members) if each.session is session), None)
            later = () if at is None else self._members[at + 1 :]
            return session.pid in self._coming or any(each.pid == session.pid for each in later)

    def results(self, of: Callable[[Session], Snapshot]) -> list[Snapshot]:
        """Return what ``of`` makes of each session, and what those were that have ended, in the order of snapshots."""
        with self._guard:
            members = list(self._members)
        return [each.result if each.session is None else of(each.session) for each in members]  # type: ignore[misc]

    def follow_no_more(self) -> None:
        """Follow no program that is executed from now on, nor those that are being probed just now."""
        self._end()

    def detach(self) -> None:
        """Remove all probes from all programs, and follow nothing any more. What was counted stays readable."""
        self._end()
        self._each("detach")

    def close(self) -> None:
        """Detach from all programs and give all memory back."""
        self._end()
        with self._sharing:
            self._each("close")

    def _end(self) -> None:
        with self._guard:
            self._ending = True
        self._strays.end()
        for each in self.sessions:
            each.host.gates.follow_no_more()

    # -- executions

    def watches(self, session: "ProbeHost") -> None:
        """Have told of what a program executes from now on without having waited before."""
        self._strays.follow(session.pid, from_start=session.process.held is not None)

    def executes(
        self, session: "ProbeHost", function: str, hit: "Hit", takes: bool, waits_at: Callable[[int], bool]
    ) -> None:
        """Follow a thread that waits before it executes; called in the thread that serves the session's gate.

        ``takes``: it is in the sample of those that are followed, else it is let be.
        """
        if self._ending:
            return
        program: NextProgram | None = None
        told = ExitStack()
        try:
            tid = task_that_waits(hit.tid, session.splicing.holdings.inodes(), waits_at)
            if tid is None:
                self.unseen += 1
                return
            if session.options.children != "count" and procfs.group_of(tid) != session.pid:
                return  # of a fork child, which is none of the user's
            if function != ITSELF:
                program = _program(function, tid, hit.regs)
                if not program.path:
                    return
                if program.refusal:
                    self._strays.expect(procfs.group_of(tid))
                    self._leave(program.path, program.refusal)
                    return
            pid = procfs.group_of(tid)
            if not takes:
                self._strays.expect(pid)
                with self._guard:
                    self._passed += 1
                return
            told.enter_context(self._strays.following(pid))
            self._follow(session, pid, tid, hit, told, at_call=function == ITSELF)
        except Exception as error:  # noqa: BLE001 - the program goes on, and this is told by name
            if isinstance(error, OSError) and error.errno in procfs.GONE_ERRORS:
                self.unseen += 1  # it has gone on meanwhile, or ended
                return
            known = isinstance(error, AnyprobeError | MemoryFault | OSError)
            why = str(error).splitlines()[0] if known else f"internal error ({type(error).__name__}: {error})"
            self._leave("a program" if program is None else program.path, why)
        finally:
            told.close()  # what could not be followed goes on only here, when that has been noted: it may end at once

    def _leave(self, path: str, why: str) -> None:
        with self._guard:
            self.unprobed[path, why] += 1

    def _permits(self, tid: int, registers: "Registers") -> bool:
        """Return whether a thread at its system call may be traced through it; note why not."""
        program = _program(_FUNCTION_OF[registers.orig_rax], tid, registers)
        if program.path and program.refusal:
            self._leave(program.path, program.refusal)
        return not program.refusal

    def _follow(self, session: "ProbeHost", pid: int, tid: int, hit: "Hit", last: ExitStack, *, at_call: bool) -> None:
        """Follow a thread through its execution; ``last``: what lets the program go where this raises."""
        self._coming.append(pid)
        last.callback(self._coming.remove, pid)
        with session.undisturbed():  # which may be about to stop a child that borrows its memory
            permits = partial(self._permits, tid) if at_call else None
            found = follow_execution(pid, tid, hit.let_go, _TIMEOUT, permits)
        if isinstance(found, Unfollowed):
            if found is not Unfollowed.REFUSED:
                self._strays.expect_no_more(pid)
            self.unseen += found in {Unfollowed.NOT_CALLED, Unfollowed.STOPPED}
            return
        self._adopt(found, last)

    def _adopt(self, process: Process, last: ExitStack) -> None:
        """Open a session on a new program that is held, place the probes, let it go; ``last``: as of ``_follow``."""
        began = procfs.now() - 1
        try:
            with typed(process, "following"):
                refuse_emulated(process)
            session = Session(process, self._options, held=True)
        except BaseException:
            last.callback(process.close)
            raise
        session.host.gates.follow(self)
        session.host.modules.permit_absent()
        session.splicing.holdings.fresh_since = began
        try:
            with interruptible(self._check):
                self._prepare(session)
                self._join(session)
                with self._guard:
                    self._adopted += 1  # before it may end, and with it the tree
                session.resume()
        except BaseException:
            with self._guard:
                before = len(self._members)
                self._members = [each for each in self._members if each.session is not session]
                self._adopted -= before - len(self._members)
                self.sessions = tuple(each for each in self.sessions if each is not session)
            last.enter_context(suppress(AnyprobeError))
            last.callback(session.close)
            raise

    def _check(self) -> None:
        """End what is being placed in a new program where nothing is followed any more."""
        if self._ending:
            raise Interrupted(_OVER)
        self.checkpoint()

    def _join(self, session: Session) -> None:
        """Make a session a member, unless all ends."""
        with self._guard:
            self._check()
            generation = 1 + sum(each.pid == session.pid for each in self._members)
            session.host.children.generation = generation
            self._members.append(Member(session, session.pid, generation))
            self.sessions = (*self.sessions, session)


def _program(function: str, tid: int, regs: "Any") -> NextProgram:  # noqa: ANN401 - of a hit, or of a traced thread
    """Return what a thread is about to execute by a function or a system call with some registers."""
    if function == "fexecve":
        return next_program(tid, b"", _signed(regs.rdi), AT_EMPTY_PATH)
    memory = TargetMemory(tid, lambda: None)
    try:
        if function == "execve":
            return program_of(tid, memory, regs.rdi)
        return program_of(tid, memory, regs.rsi, _signed(regs.rdi), regs.r8)
    finally:
        memory.close()


def _signed(word: int) -> int:
    return (word & 0xFFFFFFFF) - ((word & 0x80000000) << 1)
