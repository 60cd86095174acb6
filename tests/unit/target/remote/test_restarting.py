"""Which interrupted calls are taken up again."""

from anyprobe.target.remote import restarting
from anyprobe.target.remote.restarting import (
    EINTR,
    ERESTART_RESTARTBLOCK,
    ERESTARTNOHAND,
    ERESTARTSYS,
    NOT_REPEATABLE,
    REPEATABLE,
    cured,
    repeated_from_start,
)

EPOLL_WAIT, CLOSE, POLL, RESTART = 232, 3, 7, 219
TOP = 1 << 64


def test_eintr_of_a_repeatable_call_is_left_to_the_kernel():
    assert cured(EPOLL_WAIT, EINTR) == ERESTARTNOHAND
    assert cured(EPOLL_WAIT, 0) == 0
    assert cured(TOP - 1, EINTR) == EINTR  # not in a system call: the program's own value


def test_what_must_not_be_repeated_is_left():
    assert cured(CLOSE, EINTR) == EINTR
    assert not set(REPEATABLE) & set(NOT_REPEATABLE)


def test_without_the_kernels_help_a_call_starts_again():
    assert repeated_from_start(0, ERESTARTSYS, b"") == 0
    assert repeated_from_start(EPOLL_WAIT, EINTR, b"") == EPOLL_WAIT
    assert repeated_from_start(POLL, ERESTART_RESTARTBLOCK, b"") == POLL
    assert repeated_from_start(CLOSE, EINTR, b"") is None
    assert repeated_from_start(POLL, 1, b"") is None
    assert repeated_from_start(TOP - 1, ERESTARTSYS, b"") is None


def test_the_code_names_the_call_that_restart_syscall_continues():
    poll = b"\xb8\x07\x00\x00\x00\x0f\x05"  # mov $7,%eax; syscall
    assert repeated_from_start(RESTART, ERESTART_RESTARTBLOCK, poll) == POLL
    assert repeated_from_start(RESTART, ERESTART_RESTARTBLOCK, b"\x00" * 7) == restarting.SYS_RESTART_SYSCALL
    assert repeated_from_start(RESTART, ERESTART_RESTARTBLOCK, b"\xb8\x03\x00\x00\x00\x0f\x05") == RESTART
