"""Wait statuses as the kernel makes them."""

import pytest

from anyprobe.target.system.wait_status import Kind, decode, describe


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (0x80057F, (Kind.TRAPPED, 5)),  # PTRACE_INTERRUPT
        (0x80137F, (Kind.TRAPPED, 19)),  # group stop
        (0x04057F, (Kind.EVENT, 4)),  # exec
        (0x00857F, (Kind.SYSCALL, 5)),
        (0x000A7F, (Kind.SIGNAL, 10)),
        (0x000009, (Kind.ENDED, 9)),
        (0x000300, (Kind.ENDED, 0x300)),
    ],
)
def test_decode(status, expected):
    assert decode(status) == expected


def test_ends_in_words():
    assert describe(9) == "killed by signal 9"
    assert describe(0x300) == "exited with status 3"
