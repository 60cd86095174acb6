# mypy: disable-error-code="valid-type"
"""Handlers for where threads are off processors: in the C library's calls that may wait, the outermost one alone.

Off is what a call took less what its thread was on processors meanwhile, by the kernel's clock of it. So a call that
did not wait is not told of, whatever it did.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import UnsupportedTarget, UsageError
from anyprobe.data.aggregates.aggregations import Max, Quantize
from anyprobe.data.findings.offcpu import ASLEEP, LATE, Cause, Causes
from anyprobe.data.readers.maps import Map
from anyprobe.handlers.types.annotations import func, i32, i64, stack, u64
from anyprobe.probes.specs.spec import parse
from anyprobe.probes.waiting.libc_places import functions_in_libraries, lock_places
from anyprobe.probes.waiting.window import LATE_RAN, OPEN, SEEN, SleepWindow

if TYPE_CHECKING:
    from anyprobe.probes.session import Session

STACKS, THREADS = 4096, 4096
_LEAST_NS = 2000
"""What is shorter is no switch of threads, but the doubt of the two clocks."""
_CALLS: dict[Cause, str] = {
    Cause.TIMER: "nanosleep clock_nanosleep usleep sleep",
    Cause.CONDITION: "pthread_cond_wait pthread_cond_timedwait pthread_cond_clockwait cnd_wait cnd_timedwait "
    "pthread_barrier_wait",
    Cause.THREAD: "pthread_join pthread_timedjoin_np pthread_clockjoin_np thrd_join",
    Cause.POLL: "poll ppoll __poll_chk select pselect epoll_wait epoll_pwait epoll_pwait2",
    Cause.SOCKET: "recv recvfrom recvmsg recvmmsg send sendto sendmsg sendmmsg accept accept4 connect",
    Cause.IO: "read pread pread64 readv preadv preadv64 write pwrite pwrite64 writev pwritev pwritev64 sendfile "
    "sendfile64 splice tee copy_file_range __read_chk",
    Cause.FILE: "open open64 openat openat64 fsync fdatasync msync sync syncfs sync_file_range flock lockf lockf64 "
    "fcntl fcntl64 close ftruncate ftruncate64 unlink rename",
    Cause.CHILD: "wait waitpid wait3 wait4 waitid",
    Cause.SIGNAL: "pause sigsuspend sigwait sigwaitinfo sigtimedwait",
    Cause.IPC: "msgrcv msgsnd semop semtimedop mq_receive mq_timedreceive mq_send mq_timedsend",
    Cause.CALL: "syscall",
}
"""The functions that wait for each; what waits for locks is found by control flow."""
_BETWEEN = 1
"""Instead of a stack pointer: a thread that was seen in a call, and is in none."""
_BY_DESCRIPTOR = (Cause.SOCKET, Cause.IO, Cause.FILE)
"""Causes whose functions have a descriptor as their first parameter, but for some that have a path."""
_BY_PATH = ("open", "open64", "openat", "openat64", "unlink", "rename", "sync")
Hit = Any
"""What a handler is called with is typed by their compiler, and so is what they store."""
Stored = Any


def place_offcpu(session: "Session", causes: Causes, windows: dict[int, SleepWindow] | None = None) -> None:
    """Place the handlers in what C libraries have that waits; in a program that has only begun once they are mapped.

    Args:
        session: with ``returns="exits"``, since functions that end in others are known here and have handlers there.
        causes: is told what each function waits for, which ``asleep_in`` asks.
        windows: gets, by process, what knows of calls that are open at the beginning and at the end.

    Raises:
        UnsupportedTarget: the program has no C library.
    """
    if session.options.returns != "exits":
        raise UsageError('where threads sleep is measured in a session with returns="exits"')

    session.host.when_mapped(lambda: _place(session, causes, {} if windows is None else windows))


def _place(session: "Session", causes: Causes, windows: dict[int, SleepWindow]) -> None:
    found = {cause: functions_in_libraries(session, names.split()) for cause, names in _CALLS.items()}
    found[Cause.LOCK] = [spec for each in lock_places(session) for spec in (*each.mutex_wait, *each.sleepers)]
    wanted = {spec: cause for cause, specs in found.items() for spec in specs}
    if not wanted:
        raise UnsupportedTarget(f"process {session.pid} has no C library whose functions could be seen to wait")
    session.host.times.waiting.look()  # threads that are ready and have no processor wait in no call
    paths = set(functions_in_libraries(session, _BY_PATH))
    with_descriptors = [spec for spec, cause in wanted.items() if cause in _BY_DESCRIPTOR and spec not in paths]
    _Handlers(session).place(with_descriptors, [spec for spec in wanted if spec not in set(with_descriptors)])
    windows[session.pid] = SleepWindow(session, causes)
    for spec, cause in wanted.items():
        for site in session.resolve(parse(spec))[0]:
            causes[session.shown("func", site.object.runtime(site.function.start))] = cause


class _Handlers:
    """The handlers of both kinds of functions, which share what they keep."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self.asleep: Stored = Quantize(ASLEEP, by=("function", "stack", "descriptor"), capacity=STACKS)
        self.late: Stored = Max(LATE, by=("function", "stack", "tid"), capacity=STACKS)
        self.late_ran: Stored = Map(LATE_RAN, by=("tid",), capacity=THREADS)
        self.inside: Stored = Map(SEEN, by=("tid",), capacity=THREADS)
        kinds = (None, None, func, stack, i64)
        self.open: Stored = [
            Map(name, by=("tid",), capacity=THREADS, value=kind) for name, kind in zip(OPEN, kinds, strict=True)
        ]

    def place(self, on_descriptors: list[str], others: list[str]) -> None:
        """Place them at functions whose first parameter is a descriptor, and at others."""
        inside, begun = self.inside, self._begun()

        # a call that was left by longjmp, or in a thread that has ended, was made at another depth of the stack
        @self._session.call(*others, retval=u64)
        def begins(ctx: Hit) -> None:
            outer = inside.get(ctx.tid, 0)
            if outer <= _BETWEEN or ctx.regs.rsp >= outer:
                inside[ctx.tid] = ctx.regs.rsp
                ctx.data.descriptor = i64(-1)
                ctx.data.cpu = ctx.cpu_now
                ctx.data.began = ctx.now
                begun(u64(ctx.tid), ctx.data.began, ctx.data.cpu, ctx.func, ctx.ustack(), i64(-1))

        begins.ret(self._ends())
        if not on_descriptors:
            return

        @self._session.call(*on_descriptors, retval=u64)
        def begins_on(ctx: Hit, descriptor: i32) -> None:
            outer = inside.get(ctx.tid, 0)
            if outer <= _BETWEEN or ctx.regs.rsp >= outer:
                inside[ctx.tid] = ctx.regs.rsp
                ctx.data.descriptor = i64(descriptor)
                ctx.data.cpu = ctx.cpu_now
                ctx.data.began = ctx.now
                begun(u64(ctx.tid), ctx.data.began, ctx.data.cpu, ctx.func, ctx.ustack(), i64(descriptor))

        begins_on.ret(self._ends())

    def _begun(self) -> Callable[..., None]:
        """Return the function of handlers that takes note of a call that may not have ended when results are read."""
        since, ran, at, stack_of, descriptor_of = self.open

        def begun(tid: u64, now: u64, cpu: u64, place: func, where: stack, descriptor: i64) -> None:
            ran[tid] = cpu
            at[tid] = place
            stack_of[tid] = where
            descriptor_of[tid] = descriptor
            since[tid] = now

        return begun

    def _ends(self) -> Callable[..., None]:
        """Return the handler of returns."""
        asleep, late, late_ran, inside, since = self.asleep, self.late, self.late_ran, self.inside, self.open[0]

        def ends(ctx: Hit) -> None:
            if ctx.data.began is not None:
                inside[ctx.tid] = _BETWEEN
                since[u64(ctx.tid)] = 0
                wall = ctx.now - ctx.data.began
                cpu = ctx.cpu_now - ctx.data.cpu
                # a function that ends in another one has not waited yet: that one is asked
                if ctx.retval is not None and wall > cpu + _LEAST_NS:
                    asleep[ctx.func, ctx.ustack(python=True), ctx.data.descriptor].add(wall - cpu)
            elif inside.get(ctx.tid, 0) == 0 and ctx.retval is not None:  # it began before the handlers were there
                inside[ctx.tid] = _BETWEEN
                late[ctx.func, ctx.ustack(python=True), ctx.tid].add(ctx.now)
                late_ran[ctx.tid] = ctx.cpu_now

        return ends
