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
    assert stacks.words_behind(stop.waiting[0]) == [CODE + 5, CODE + 7]


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
