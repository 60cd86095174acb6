"""The code that waits for a callback, run in this very process, with the test in the controller's place."""

import ctypes
import mmap
import threading
import time

import pytest

from anyprobe.core.code import InputKind
from anyprobe.data.layouts import layout
from anyprobe.isa import disassemble
from anyprobe.splice.codegen.handlers import rendezvous

WRAPPER = bytes.fromhex(
    "41 54 41 55 41 56 41 57 48 83 ec 08 e8 0f 00 00 00 48 83 c4 08 41 5f 41 5e 41 5d 41 5c c3 90 90"
)
# push r12; push r13; push r14; push r15; sub rsp, 8; call behind; add rsp, 8; pop r15; pop r14; pop r13; pop r12; ret
NUMBER = 3
PLACE = rendezvous.PLACES + NUMBER * rendezvous.PLACE_BYTES
OWNER_DIED = 1 << 30


class Meeting:
    def __init__(self, nanoseconds, *, writes=True, room=rendezvous.NUMBERED):
        self.code = rendezvous.waiting_code(5, nanoseconds, context=("ip",), writes=writes, room=room)
        self.area = mmap.mmap(-1, 1 << 14, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.area.write(WRAPPER + self.code.code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.area))
        self.run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        self.memory = mmap.mmap(-1, rendezvous.SIZE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.words = (ctypes.c_uint64 * len(self.code.inputs))(*range(100, 100 + len(self.code.inputs)))
        self.words[0], self.words[1] = self.base, NUMBER

    def word(self, offset, kind=ctypes.c_uint64):
        return kind.from_address(self.base + offset)

    @property
    def lock(self):
        return self.word(PLACE + rendezvous.LOCK, ctypes.c_uint32)

    def hit(self):
        self.run(ctypes.addressof(self.words))
        return list(self.words[2:])

    @property
    def counts(self):
        return self.word(rendezvous.TIMEOUTS).value, self.word(rendezvous.ABSENT).value


def test_the_code_is_code():
    for writes in (False, True):
        made = rendezvous.waiting_code(5, 1_999_999_999, context=("ip",), writes=writes)
        text = [text for _, _, text in disassemble.format(made.code, 0)]
        assert "(bad)" not in text
        assert text.count("syscall") == 5
        assert text[-1] == "ret"
        assert all(
            each.written == (writes and each.name != "rsp") for each in made.inputs if each.kind is InputKind.REGISTER
        )
        assert len(made.inputs) - 2 <= rendezvous.WORDS_LIMIT
        # the routine that calls it keeps these
        assert not made.clobbers & {"rbx", "rbp", "rsp"}
        written = {each.split(" ")[1].split(",")[0] for each in text if each.startswith(("mov", "lea", "xor", "inc"))}
        assert not written & {"rbx", "rbp", "rsp", "ebx", "ebp"}


def test_places_fit():
    assert rendezvous.ASKED + 8 * rendezvous.WORDS_LIMIT <= rendezvous.REPLY
    assert rendezvous.REPLY + 8 * rendezvous.WORDS_LIMIT <= rendezvous.RATE
    assert rendezvous.OPEN + 8 + 16 * rendezvous.OPEN_LIMIT <= rendezvous.PLACE_BYTES
    assert rendezvous.PLACE_BYTES == 1 << 9  # which the code shifts by


@pytest.mark.parametrize("number", [0, rendezvous.THREADS + 1, 1 << 63])
def test_a_thread_without_a_place_does_not_wait(number):
    made = Meeting(10**10)
    made.words[1] = number
    made.hit()
    assert made.counts == (0, 1)


@pytest.mark.parametrize("lock", [0, OWNER_DIED, OWNER_DIED | rendezvous.WAITERS])
def test_nobody_is_waited_for_who_is_not_there(lock):
    made = Meeting(10**10)
    made.lock.value = lock
    before = list(made.words[2:])
    assert made.hit() == before
    assert made.counts == (0, 1)


@pytest.mark.parametrize("nanoseconds", [1, 999_999_999, 20_000_000])
def test_who_is_not_answered_goes_on(nanoseconds):
    made = Meeting(nanoseconds)
    made.lock.value = 77
    before = list(made.words[2:])
    begin = time.monotonic_ns()
    assert made.hit() == before
    assert nanoseconds <= time.monotonic_ns() - begin
    assert made.counts == (1, 0)
    assert made.lock.value == 77
    assert made.word(rendezvous.TICKETS + 8 * NUMBER).value == 1
    assert made.word(rendezvous.BELL, ctypes.c_uint32).value == 1
    asked = (ctypes.c_uint64 * len(before)).from_address(made.base + PLACE + rendezvous.ASKED)
    assert list(asked) == before
    assert made.word(PLACE + rendezvous.CALLBACK, ctypes.c_uint32).value == 5
    assert made.word(PLACE + rendezvous.TID, ctypes.c_uint32).value == threading.get_native_id()


def test_open_calls_begin_later_by_what_the_thread_has_waited_until_it_went_on():
    """Three calls in two places, one of them over: what waits for its turn after the answer is left out, too."""
    made = Meeting(20 * 10**9)
    made.lock.value = 77
    words = layout.INSTANCE_BYTES // 8
    stacks = [(ctypes.c_uint64 * (words * 4))() for _ in range(2)]
    for index, stack_pointer in enumerate((5000, layout.TOMBSTONE, 4000, 4100)):
        stacks[0][words * index + layout.INSTANCE_SP // 8] = stack_pointer
        stacks[0][words * index + layout.INSTANCE_T0 // 8] = 7
    stacks[1][layout.INSTANCE_SP // 8], stacks[1][layout.INSTANCE_T0 // 8] = 3000, 9

    def answer():
        while not made.lock.value & rendezvous.WAITERS:
            time.sleep(0.001)
        held = (3 << rendezvous.RATE_BITS, 2, ctypes.addressof(stacks[0]), 3, ctypes.addressof(stacks[1]), 1)
        (ctypes.c_uint64 * len(held)).from_address(made.base + PLACE + rendezvous.RATE)[:] = held
        made.word(PLACE + rendezvous.ANSWERED).value = 1
        time.sleep(0.2)  # the answer is there, the thread not awake
        made.lock.value = 77
        ctypes.CDLL(None).syscall(202, ctypes.c_uint64(made.base + PLACE), 1, 1, 0, 0, 0)

    other = threading.Thread(target=answer)
    other.start()
    began = time.monotonic_ns()
    made.hit()
    took = time.monotonic_ns() - began
    other.join(10)
    starts = [stacks[0][words * index + layout.INSTANCE_T0 // 8] for index in range(4)]
    later = starts[0] - 7
    assert 3 * 200_000_000 < later <= 3 * took
    assert starts == [7 + later, 7, 7 + later, 7]
    assert stacks[1][layout.INSTANCE_T0 // 8] == 9 + later


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("writes", [False, True])
def test_an_answer_is_taken_over_if_that_is_wanted(changed, writes):
    made = Meeting(20 * 10**9, writes=writes)
    made.lock.value = 77
    before = list(made.words[2:])
    reply = [word + 1000 for word in before]

    def answer():
        while not made.lock.value & rendezvous.WAITERS:
            time.sleep(0.001)
        (ctypes.c_uint64 * len(before)).from_address(made.base + PLACE + rendezvous.REPLY)[:] = reply
        made.word(PLACE + rendezvous.CHANGED).value = changed
        # a wake-up without an answer, a late answer to another ticket: the hit goes on waiting
        made.word(PLACE + rendezvous.ANSWERED).value = 9
        for _ in range(3):
            made.lock.value = 77
            ctypes.CDLL(None).syscall(202, ctypes.c_uint64(made.base + PLACE), 1, 1, 0, 0, 0)
            time.sleep(0.005)
        assert made.words[2] == before[0]
        made.word(PLACE + rendezvous.ANSWERED).value = 1
        made.lock.value = 77
        ctypes.CDLL(None).syscall(202, ctypes.c_uint64(made.base + PLACE), 1, 1, 0, 0, 0)

    other = threading.Thread(target=answer)
    other.start()
    found = made.hit()
    other.join()
    assert found == (reply if changed and writes else before)
    assert made.counts == (0, 0)
    assert made.lock.value == 77


class TestPlacesThatAreTaken:
    ROOM = rendezvous.Room(4, taken=True)

    def holder(self, made, number):
        return made.word(rendezvous.PLACES + number * rendezvous.PLACE_BYTES + rendezvous.HOLDER)

    def meeting(self, nanoseconds):
        made = Meeting(nanoseconds, room=self.ROOM)
        for number in range(self.ROOM.places):
            made.word(rendezvous.PLACES + number * rendezvous.PLACE_BYTES, ctypes.c_uint32).value = 77
        return made

    def test_each_is_given_back(self):
        made = self.meeting(1)
        for _ in range(3 * self.ROOM.places):
            made.hit()
        assert made.counts == (3 * self.ROOM.places, 0)
        assert [self.holder(made, number).value for number in range(self.ROOM.places)] == [0] * self.ROOM.places

    def test_one_that_is_free_is_found_and_without_one_no_thread_waits(self):
        made = self.meeting(1)
        for number in (0, 1, 3):
            self.holder(made, number).value = 1000 + number
        made.hit()
        made.hit()
        assert made.word(rendezvous.TICKETS + 8 * 2).value == 2
        self.holder(made, 2).value = 1002
        made.hit()
        assert made.counts == (2, 1)
        assert [self.holder(made, number).value for number in range(self.ROOM.places)] == [1000, 1001, 1002, 1003]

    def test_what_has_become_anothers_is_left_to_it(self):
        """A thread that was stopped for so long that its place was taken from it."""
        made = self.meeting(50_000_000)
        tokens = []

        def take():
            while not (found := [n for n in range(self.ROOM.places) if self.holder(made, n).value]):
                time.sleep(0.001)
            tokens.append(self.holder(made, found[0]).value)
            self.holder(made, found[0]).value = 4711

        other = threading.Thread(target=take)
        other.start()
        while other.is_alive():  # it may not get to run while a hit waits
            made.hit()
        assert tokens[0] not in {0, 4711}
        assert sorted(self.holder(made, number).value for number in range(self.ROOM.places)) == [0, 0, 0, 4711]
