"""Finding the pcs that the kernel has saved on stacks."""

import struct
from types import SimpleNamespace

from anyprobe.core.memory import MemoryFault
from anyprobe.splice.apply.saved_pcs import Stacks
from anyprobe.target.process.stopping import Stop, WaitingParent
from anyprobe.target.remote.saved_frames import frames_in, is_of_breakpoint
from anyprobe.target.system.procfs import Mapping

STACK, ALTERNATE, VDSO = 0x7000_0000, 0x7100_0000, 0x7200_0000
SIZE = 0x2000
CODE = 0x5555_0000


class Words:
    """Memory of three mappings, written word by word."""

    def __init__(self):
        self.bytes = {STACK: bytearray(SIZE), ALTERNATE: bytearray(SIZE)}

    def put(self, address, *words):
        base = next(base for base in self.bytes if base <= address < base + SIZE)
        struct.pack_into(f"<{len(words)}Q", self.bytes[base], address - base, *words)

    def frame(self, address, rsp, rip, flags=0x246, selectors=0x2B_0000_0000_0033):
        """Put the end of a sigcontext: rsp, rip, eflags, selectors."""
        self.put(address, rsp, rip, flags, selectors)

    def read(self, address, size):
        for base, content in self.bytes.items():
            if base <= address and address + size <= base + SIZE:
                return bytes(content[address - base : address - base + size])
        raise MemoryFault(address, size)


def mapping(start, perms, path=""):
    return Mapping(start, start + SIZE, perms, 0, "00:00", 0, path, False)


MAPPINGS = [mapping(STACK, "rw-p"), mapping(ALTERNATE, "rw-p"), mapping(VDSO, "r-xp", "[vdso]")]


def thread(rsp, rip=CODE):
    return SimpleNamespace(registers=SimpleNamespace(rsp=rsp, rip=rip))


def test_a_stack_without_signal_frames_has_none():
    memory = Words()
    memory.put(STACK + 0x1800, CODE, CODE + 1, 0x33)
    assert Stacks(memory, MAPPINGS).saved_pcs(thread(STACK + 0x1000)) == []


def test_the_frame_of_a_handler_on_the_same_stack():
    memory = Words()
    memory.frame(STACK + 0x1100, STACK + 0x1800, CODE + 7)
    assert Stacks(memory, MAPPINGS).saved_pcs(thread(STACK + 0x1000)) == [CODE + 7]


def test_frames_further_out_are_found_through_the_alternate_stack():
    memory = Words()
    memory.frame(ALTERNATE + 0x1100, STACK + 0x1000, CODE + 7)
    memory.frame(STACK + 0x1200, STACK + 0x1900, CODE + 9)
    assert Stacks(memory, MAPPINGS).saved_pcs(thread(ALTERNATE + 0x1000)) == [CODE + 7, CODE + 9]


def test_an_alternate_stack_above_the_threads_in_one_mapping():
    memory = Words()
    memory.frame(STACK + 0x1A00, STACK + 0x800, CODE + 7)
    memory.frame(STACK + 0x900, STACK + 0xF00, CODE + 9)
    assert {CODE + 7, CODE + 9} == set(Stacks(memory, MAPPINGS).saved_pcs(thread(STACK + 0x1900)))


def test_a_parent_that_waits_for_a_child_on_a_stack_of_its_own():
    memory = Words()
    memory.frame(STACK + 0x1100, STACK + 0x1800, CODE + 7)
    stop = Stop(SimpleNamespace(mappings=lambda: MAPPINGS, parks=False))
    stop.threads = [SimpleNamespace(tid=1, registers=SimpleNamespace(rsp=ALTERNATE + 0x1000, rip=CODE))]
    stop.waiting = [WaitingParent(2, 2, CODE + 5, STACK + 0x1000)]
    stacks = Stacks(memory, MAPPINGS)
    assert list(stacks.all_saved_pcs(stop)) == [(1, []), (2, [CODE + 7])]
    assert stacks.words_after(stop.waiting[0]) == [CODE + 5, CODE + 7]


def test_flags_that_no_program_has_are_no_frame():
    memory = Words()
    memory.frame(STACK + 0x1100, STACK + 0x1800, CODE + 7, flags=0x244)
    memory.frame(STACK + 0x1200, STACK + 0x1800, CODE + 7, flags=1 << 40)
    memory.frame(STACK + 0x1304, STACK + 0x1800, CODE + 7)  # not on a word
    assert Stacks(memory, MAPPINGS).saved_pcs(thread(STACK + 0x1000)) == []


def test_words_of_the_stack_count_only_below_a_pc_in_the_vdso():
    memory = Words()
    memory.put(STACK + 0x1008, CODE + 5)
    assert Stacks(memory, MAPPINGS).code_words(thread(STACK + 0x1000)) == [CODE]
    words = Stacks(memory, MAPPINGS).code_words(thread(STACK + 0x1000, rip=VDSO + 3))
    assert words[0] == VDSO + 3
    assert CODE + 5 in words


def test_a_stack_pointer_that_leads_nowhere_has_no_frames():
    assert Stacks(Words(), MAPPINGS).saved_pcs(thread(0x1234)) == []


HEAP, HEAP_SIZE = 0x7300_0000, 1 << 24
LOW, HIGH = HEAP + 0x4000, HEAP + 0x6000
"""Of a goroutine's stack."""
GOROUTINE, SIGNALS, M = HEAP + 0x8000, HEAP + 0x8200, HEAP + 0x8400


class Heap(Words):
    """Memory of Go's heap, with a goroutine and its stack, and what was read of it."""

    def __init__(self):
        super().__init__()
        self.bytes[HEAP] = bytearray(HEAP_SIZE)
        self.largest = 0
        self.put(GOROUTINE, LOW, HIGH)
        for each in (GOROUTINE, SIGNALS):
            self.put(each + 48, M)
        self.put(M + 192, GOROUTINE)
        self.frame(LOW + 0x1100, LOW + 0x1800, CODE + 7)
        self.frame(HIGH + 0x100, HIGH + 0x800, CODE + 9)

    def put(self, address, *words):
        if HEAP <= address < HEAP + HEAP_SIZE:
            struct.pack_into(f"<{len(words)}Q", self.bytes[HEAP], address - HEAP, *words)
        else:
            super().put(address, *words)

    def read(self, address, size):
        self.largest = max(self.largest, size)
        if address >= HEAP and address + size <= HEAP + HEAP_SIZE:
            return bytes(self.bytes[HEAP][address - HEAP : address - HEAP + size])
        return super().read(address, size)


IN_HEAP = [*MAPPINGS, Mapping(HEAP, HEAP + HEAP_SIZE, "rw-p", 0, "00:00", 0, "", False)]


def goroutine(rsp, *, r14=0, fs_base=0):
    return SimpleNamespace(registers=SimpleNamespace(rsp=rsp, rip=CODE, r14=r14, fs_base=fs_base))


def test_a_goroutine_s_stack_is_searched_to_its_end():
    memory = Heap()
    stacks = Stacks(memory, IN_HEAP)
    assert stacks.saved_pcs(goroutine(LOW + 0x1000, r14=GOROUTINE)) == [CODE + 7]
    assert memory.largest <= 0x2000
    parent = WaitingParent(2, 2, CODE + 5, LOW + 0x1080)  # of which no goroutine is known, but on a stack that is
    assert stacks.words_after(parent) == [CODE + 5, CODE + 7]
    assert memory.largest <= 0x2000


def test_a_goroutine_is_known_by_its_thread_s_memory():
    memory = Heap()
    memory.put(HEAP + 0x9000 - 8, GOROUTINE)
    assert Stacks(memory, IN_HEAP).saved_pcs(goroutine(LOW + 0x1000, fs_base=HEAP + 0x9000)) == [CODE + 7]
    memory.put(HEAP + 0x9000 - 8, SIGNALS)  # the thread handles a signal: its goroutine is the one that it runs
    assert Stacks(memory, IN_HEAP).saved_pcs(goroutine(LOW + 0x1000, fs_base=HEAP + 0x9000)) == [CODE + 7]


def test_a_goroutine_is_known_by_the_frame_of_a_handler_on_another_stack():
    memory = Heap()
    memory.frame(ALTERNATE + 0x1100, LOW + 0x1000, CODE + 3)
    memory.put(ALTERNATE + 0x1100 - 72, GOROUTINE)
    assert Stacks(memory, IN_HEAP).saved_pcs(goroutine(ALTERNATE + 0x1000)) == [CODE + 3, CODE + 7]


def test_without_a_known_goroutine_all_memory_behind_is_searched_once():
    memory = Heap()
    memory.frame(HEAP + (1 << 22) - 24, HIGH + 0x800, CODE + 11)  # across two pieces that are read
    stacks = Stacks(memory, IN_HEAP)
    memory.put(GOROUTINE, LOW, HIGH + 8)  # no size of a stack
    for _ in range(2):
        assert sorted(stacks.saved_pcs(goroutine(LOW + 0x1000, r14=GOROUTINE))) == [CODE + 7, CODE + 9, CODE + 11]
        memory.frame(HIGH + 0x2000, HIGH + 0x800, CODE + 13)
    found = stacks.saved_pcs(goroutine(HEAP + 0x100, r14=GOROUTINE))
    assert sorted(found) == [CODE + 7, CODE + 9, CODE + 11]
    assert stacks.saved_pcs(goroutine(HIGH + 0x300, r14=GOROUTINE)) == [CODE + 11]


def test_stacks_that_an_older_memory_map_does_not_have_are_told():
    """The one a thread is on, and the one that a handler on another will come back to."""
    memory = Words()
    memory.frame(ALTERNATE + 0x1100, STACK + 0x1000, CODE + 7)
    before = [each for each in MAPPINGS if each.start != STACK]
    assert Stacks(memory, MAPPINGS).are_known(thread(ALTERNATE + 0x1000))
    assert not Stacks(memory, before).are_known(thread(ALTERNATE + 0x1000))
    assert not Stacks(memory, before).are_known(thread(STACK + 0x1000))


def test_frames_of_breakpoints_are_known_by_what_the_kernel_says_of_the_signal():
    saved = struct.pack("<3Q", 0x7000, 0x1234, 0x246) + b"\x33\0\0\0\0\0\0\0" + struct.pack("<3Q", 0, 3, 0)
    frame = saved.ljust(144, b"\0") + struct.pack("<3i", 5, 0, 0x80)
    ((start, pointer, pc),) = frames_in(frame)
    assert (start, pointer, pc) == (0, 0x7000, 0x1234)
    assert is_of_breakpoint(frame, start)
    assert not is_of_breakpoint(frame[:-1], start)
    for at, other in ((40, b"\x01"), (144, b"\x0b"), (152, b"\xfa")):
        assert not is_of_breakpoint(frame[:at] + other + frame[at + 1 :], start)
