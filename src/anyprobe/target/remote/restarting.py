"""System calls that a stop interrupts, and how the kernel is made to take them up again.

Being stopped, without any signal, makes some system calls return EINTR (man 7 signal, "Interruption of system calls
and library functions by stop signals"): programs that install no handlers do not expect that. A thread that we stopped
right after such a call gets -ERESTARTNOHAND instead of -EINTR: the kernel then repeats the call if no handler is to
run, and returns EINTR if one is. A relative timeout starts anew then.
"""

_TOP = 1 << 64
EINTR = _TOP - 4
ERESTARTSYS = _TOP - 512
ERESTARTNOINTR = _TOP - 513
ERESTARTNOHAND = _TOP - 514
ERESTART_RESTARTBLOCK = _TOP - 516
RESTART_CODES = frozenset({ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK})
INTERRUPTED_CODES = RESTART_CODES | {EINTR}
SYS_RESTART_SYSCALL = 219

# These have done nothing yet, or nothing that repeating them would do twice, when they return EINTR.
REPEATABLE: dict[int, str] = {
    0: "read", 1: "write", 7: "poll", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 23: "select",
    34: "pause", 35: "nanosleep", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg",
    61: "wait4", 65: "semop", 69: "msgsnd", 70: "msgrcv", 73: "flock", 128: "rt_sigtimedwait", 130: "rt_sigsuspend",
    202: "futex", 208: "io_getevents", 220: "semtimedop", 230: "clock_nanosleep", 232: "epoll_wait",
    242: "mq_timedsend", 243: "mq_timedreceive", 247: "waitid", 270: "pselect6", 271: "ppoll", 275: "splice",
    276: "tee", 278: "vmsplice", 281: "epoll_pwait", 288: "accept4", 295: "preadv", 296: "pwritev", 299: "recvmmsg",
    307: "sendmmsg", 318: "getrandom", 327: "preadv2", 328: "pwritev2", 333: "io_pgetevents", 426: "io_uring_enter",
    441: "epoll_pwait2", 449: "futex_waitv", 455: "futex_wait",
}  # fmt: skip

# Never repeated, whatever they return, because part of their effect may have happened. Anything in neither table is
# left as it is, too.
NOT_REPEATABLE: dict[int, str] = {
    3: "close",  # the descriptor is gone already; another thread may have got its number
    16: "ioctl",  # the driver's own protocol
    42: "connect",  # in progress: the second one fails with EALREADY on some protocols
    56: "clone", 57: "fork", 58: "vfork", 59: "execve", 322: "execveat", 435: "clone3",
    2: "open", 257: "openat", 437: "openat2",  # with O_EXCL on a network file system, the file may be made already
    72: "fcntl", 101: "ptrace", 165: "mount", 166: "umount2", 249: "request_key", 436: "close_range",
}  # fmt: skip

# restart_syscall() continues one of these; the number is lost, the other arguments are still in the registers.
RESTARTED_BY_BLOCK = frozenset({7, 35, 202, 230})


def cured(orig_rax: int, rax: int) -> int:
    """Return the rax with which a thread is to leave a stop."""
    if rax == EINTR and orig_rax in REPEATABLE:
        return ERESTARTNOHAND
    return rax


def repeated_from_start(orig_rax: int, rax: int, before_pc: bytes) -> int | None:
    """Return the number of the call to execute again, or ``None`` where the thread just goes on.

    For a thread that will not pass through the kernel's own restart logic. ``before_pc`` are the seven bytes before the
    pc, which name the call where the kernel no longer knows it.
    """
    if orig_rax >= _TOP >> 1 or cured(orig_rax, rax) not in RESTART_CODES:
        return None
    if orig_rax != SYS_RESTART_SYSCALL:
        return orig_rax
    if before_pc[:1] == b"\xb8" and before_pc[5:] == b"\x0f\x05":  # mov $number,%eax; syscall
        number = int.from_bytes(before_pc[1:5], "little")
        if number in RESTARTED_BY_BLOCK:
            return number
    return orig_rax
