"""Handlers for where threads are off processors: in the C library's calls that may wait, the outermost one alone.

Off is what a call took less what its thread was on processors meanwhile, by the kernel's clock of it. So a call that
did not wait is not told of, whatever it did.
"""

from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import UnsupportedTarget, UsageError
from anyprobe.data.aggregations import Quantize
from anyprobe.data.maps import Map
from anyprobe.data.offcpu import ASLEEP, Cause, Causes
from anyprobe.handlers.types.annotations import u64
from anyprobe.probes.specs.spec import parse
from anyprobe.probes.waiting.libc_places import functions_in_libraries, lock_places

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
Hit = Any
"""What a handler is called with is typed by their compiler, and so is what they store."""
Stored = Any


def place_offcpu(session: "Session", causes: Causes) -> None:
    """Place the handlers in what C libraries have that waits; in a program that has only begun once they are mapped.

    Args:
        session: with ``returns="exits"``, since functions that end in others are known here and have handlers there.
        causes: is told what each function waits for, which ``asleep_in`` asks.

    Raises:
        UnsupportedTarget: the program has no C library.
    """
    if session.options.returns != "exits":
        raise UsageError('where threads sleep is measured in a session with returns="exits"')
    session.host.when_mapped(lambda: _place(session, causes))


def _place(session: "Session", causes: Causes) -> None:
    found = {cause: functions_in_libraries(session, names.split()) for cause, names in _CALLS.items()}
    found[Cause.LOCK] = [spec for each in lock_places(session) for spec in (*each.mutex_wait, *each.sleepers)]
    wanted = {spec: cause for cause, specs in found.items() for spec in specs}
    if not wanted:
        raise UnsupportedTarget(f"process {session.pid} has no C library whose functions could be seen to wait")
    session.host.times.waiting.look()  # threads that are ready and have no processor wait in no call
    _place_handlers(session, list(wanted))
    for spec, cause in wanted.items():
        for site in session.resolve(parse(spec))[0]:
            causes[session.shown("func", site.object.runtime(site.function.start))] = cause


def _place_handlers(session: "Session", specs: list[str]) -> None:
    asleep: Stored = Quantize(ASLEEP, by=("function", "stack"), capacity=STACKS)
    inside: Stored = Map("inside", by=("tid",), capacity=THREADS, shown=False)

    @session.call(*specs, retval=u64)
    def begins(ctx: Hit) -> None:
        outer = inside.get(ctx.tid, 0)
        # a call that was left by longjmp, or in a thread that has ended, was made at another depth of the stack
        if outer == 0 or ctx.regs.rsp >= outer:
            inside[ctx.tid] = ctx.regs.rsp
            ctx.data.cpu = ctx.cpu_now
            ctx.data.began = ctx.now

    @begins.ret
    def ends(ctx: Hit) -> None:
        if ctx.data.began is not None:
            inside[ctx.tid] = 0
            wall = ctx.now - ctx.data.began
            cpu = ctx.cpu_now - ctx.data.cpu
            # a function that ends in another one has not waited yet: that one is asked
            if ctx.retval is not None and wall > cpu + _LEAST_NS:
                asleep[ctx.func, ctx.ustack()].add(wall - cpu)
