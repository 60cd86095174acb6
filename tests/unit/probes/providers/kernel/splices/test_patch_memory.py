"""Memory for patches of a session: given out, taken back, and used again when the driver says that no task is in it."""

import errno

import pytest

from anyprobe.probes.providers.kernel.splices.patch_memory import PatchMemory, Piece
from anyprobe.target.kernel.driver.device import BatchRefused
from anyprobe.target.kernel.driver.layout import MAX_FIXUPS, Fixup, Verdict

START, CHUNK = 1 << 30, 64 << 10


class FakeDriver:
    """Gives memory, one piece behind the other, and takes fix-ups back, unless a task is in a patch."""

    def __init__(self):
        self.end, self.given_up, self.busy = START, [], False

    def reserve(self, size):
        start, self.end = self.end, self.end + size
        return start

    def apply(self, writes, fixups=(), *, tries):
        assert (writes, tries) == ([], 1)
        if self.busy:
            raise BatchRefused(errno.EAGAIN, Verdict.BUSY, None)
        self.given_up.append([*fixups])


@pytest.fixture
def driver():
    return FakeDriver()


@pytest.fixture
def memory(driver):
    return PatchMemory(driver)


def test_what_is_not_used_is_given_again(memory):
    whole = memory.reserve(1000)
    assert (whole.start, whole.end) == (START, START + 1008)
    used = Piece(START + 64, START + 128)
    memory.keep(whole, [used, Piece(START + 2000, START + 2016)])
    assert memory.reserve(64) == Piece(START, START + 64)
    assert memory.reserve(64) == Piece(START + 128, START + 192)
    assert memory.reserve(CHUNK) == Piece(START + CHUNK, START + 2 * CHUNK)
    memory.keep(Piece(START, START + 64), [])
    memory.keep(used, [])
    assert memory.reserve(128) == Piece(START, START + 128), "neighbours are one"


def test_what_tasks_may_be_in_waits_until_they_are_not(memory, driver):
    pieces = [memory.reserve(1 << 14) for _ in range(5)]
    driver.busy = True
    memory.leave(pieces[:4])
    assert memory.reserve(1 << 14).start == START + 5 * (1 << 14)
    driver.busy = False
    memory.leave([])
    assert driver.given_up == [[Fixup(START, 0)]]
    assert memory.reserve(1 << 16) == Piece(START, START + (1 << 16))


def test_fix_ups_are_given_up_with_what_was_left(memory, driver):
    most = 256
    for number in range(most):
        memory.leave([Piece(START + 16 * number, START + 16 * number + 16, (START + 16 * number + 3,))])
    ((first, *copies),) = driver.given_up
    assert first == Fixup(START, 0)
    assert copies == [Fixup(START + 16 * number + 3, 0) for number in range(most)]
    many = tuple(range(START, START + MAX_FIXUPS + 10))
    memory.leave([Piece(START, START + CHUNK, many)])
    assert [len(each) for each in driver.given_up[1:]] == [MAX_FIXUPS, 10]


def test_a_long_session_needs_no_more_than_a_short_one(memory, driver):
    for number in range(10_000):
        memory.leave([memory.reserve(100 + number % 7 * 32)])
    assert driver.end - START <= 3 * CHUNK
