"""The generated SIGTRAP handler run natively, its listing, its table, and which sites a trap may have."""

import ctypes
import mmap
import random
import signal
import struct

import pytest

from anyprobe.core.refusal import Reason
from anyprobe.isa import disassemble
from anyprobe.journal.records import Record
from anyprobe.splice.codegen.emit import head_bytes
from anyprobe.splice.plan.splices import AUTO, Strategy, WantKind
from anyprobe.splice.userspace.signal_actions import record_of, replaced_action
from anyprobe.splice.userspace.trap_handler import (
    AMBIGUOUS,
    SA_RESTART,
    SIG_DFL,
    SIG_IGN,
    SignalAction,
    assemble_handler,
    pack_table,
    table_size,
)
from unit.splice.plan.test_planner import BASE, MOV, RET, Case, shape

SI_KERNEL, SI_TKILL, SI_USER = 0x80, -6, 0
RIP, SIGMASK, SI_CODE = 0xA8, 0x128, 8
PUSH_RBX, PUSH_RBP, MOV_RDI = "53", "55", "48 89 fb"
DEMANDED = frozenset([Strategy.TRAP])


class Handler:
    """The handler in memory of this process, called as the kernel would call it."""

    def __init__(self, old: SignalAction, entries: dict[int, int]) -> None:
        # Executable and writable: it exists to try generated code.
        self.memory = mmap.mmap(-1, 1 << 20, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.code = assemble_handler(self.base)
        self.memory[: len(self.code.content)] = self.code.content
        address, content = self.code.old_action(old)
        self.memory[address - self.base : address - self.base + len(content)] = content
        if entries:
            table = pack_table(entries)
            self.memory[0x2000 : 0x2000 + len(table)] = table
            self.memory[0:8] = struct.pack("<Q", self.base + 0x2000)
        self.enter = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(self.code.entry)

    def trap(self, rip: int, code: int = SI_KERNEL) -> int:
        """Return rip as the signal frame has it afterwards."""
        context, info = ctypes.create_string_buffer(1024), ctypes.create_string_buffer(128)
        struct.pack_into("<Q", context, RIP, rip)
        struct.pack_into("<i", info, SI_CODE, code)
        self.enter(signal.SIGTRAP, ctypes.addressof(info), ctypes.addressof(context))
        return int(struct.unpack_from("<Q", context, RIP)[0])


IGNORED = SignalAction(SIG_IGN, 0, 0, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000])
def test_every_site_is_found(count):
    """Whatever its place in the table; and nothing beside it."""
    chance = random.Random(count)
    sites = chance.sample(range(0x400000, 0x7FFF00000000, 7), count)
    entries = {site: 0x10000 + 16 * number for number, site in enumerate(sites)}
    handler = Handler(IGNORED, entries)
    assert len(pack_table(entries)) == table_size(count)
    for site, patch in entries.items():
        assert handler.trap(site + 1) == patch
        for beside in (site, site + 2, site - 1):
            if beside - 1 not in entries:
                assert handler.trap(beside, SI_USER) == beside


def test_somebody_elses_signal_at_a_site():
    """Merged with our trap, it takes the trap along; unless a thread can be there without a trap."""
    handler = Handler(IGNORED, {0x1000: 0x90, 0x2000: 0xA0 | AMBIGUOUS})
    assert handler.trap(0x1001, SI_TKILL) == 0x90
    assert handler.trap(0x2001, SI_TKILL) == 0x2001
    assert handler.trap(0x2001) == 0xA0


def test_empty_table():
    assert Handler(IGNORED, {}).trap(0x1001, SI_USER) == 0x1001


def test_passed_on_to_the_programs_handler():
    """Its own handler gets the arguments of the kernel and its mask, without SIGTRAP."""
    seen = []

    @ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def theirs(number, info, context):
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        rip = struct.unpack("<Q", ctypes.string_at(context + RIP, 8))[0]
        seen.append((number, ctypes.string_at(info + SI_CODE, 4), rip, masked))

    blocked = 1 << (signal.SIGUSR1 - 1) | 1 << (signal.SIGTRAP - 1)
    address = ctypes.cast(theirs, ctypes.c_void_p).value
    handler = Handler(SignalAction(address, 0, 0, blocked), {0x1000: 0x90})
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        assert handler.trap(0x5000) == 0x5000
        assert handler.trap(0x1001) == 0x90
        assert handler.trap(0x1001, SI_TKILL) == 0x90
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    (first, second) = seen
    assert first == (signal.SIGTRAP, struct.pack("<i", SI_KERNEL), 0x5000, {signal.SIGUSR1})
    assert second == (signal.SIGTRAP, struct.pack("<i", SI_TKILL), 0x90, {signal.SIGUSR1})


def test_listing_says_what_the_bytes_are():
    """Each line of assembly disassembles to the mnemonics that it says."""
    handler = assemble_handler(0x7000000)
    aliases = {"je": "je", "jz": "je", "jnz": "jne", "jae": "jae", "jb": "jb"}
    for line in handler.listing.splitlines():
        if line.endswith(":"):
            continue
        offset, rest = int(line[:4], 16), line[6:]
        code, text = bytes.fromhex(rest[:32]), rest[32:].strip()
        decoded = [entry[2].split()[0] for entry in disassemble.format(code, handler.entry + offset)]
        assert decoded == [aliases.get(each.split()[0], each.split()[0]) for each in text.split("; ")], line
    restorer = handler.restorer - handler.address
    assert handler.content[restorer : restorer + 9] == bytes.fromhex("48c7c00f0000000f05")  # what unwinders know


def test_action():
    """All signals are blocked in the handler; system calls restart as the program wants it."""
    handler = assemble_handler(0x7000000)
    for old, restarts in (
        (SignalAction(SIG_DFL, 0, 0, 0), True),
        (SignalAction(0x1234, 0, 0, 0), False),
        (SignalAction(0x1234, SA_RESTART, 0, 0), True),
    ):
        ours = handler.action(old)
        assert (ours.handler, ours.restorer, ours.mask) == (handler.entry, handler.restorer, (1 << 64) - 1)
        assert ours.flags & ~SA_RESTART == 0x0C000004  # SA_RESTORER, SA_ONSTACK, SA_SIGINFO
        assert bool(ours.flags & SA_RESTART) == restarts


def test_record_of_an_action_survives():
    old = SignalAction(0x1122334455667788, 0x14000004, 0x99AABBCC, 0xFFFF0000FFFF0000)
    record = record_of(0x7000080, old)
    assert Record.unpack(record.pack()) == record


def test_whose_action_comes_back():
    """A handler set over our own stands for what the first one replaced; a circle, or a stranger's, for nothing."""
    program = SignalAction(0x5000, 4, 0x6000, 0)
    first, second = SignalAction(0x100, 4, 0, 0), SignalAction(0x200, 4, 0, 0)
    assert replaced_action({0x100: program, 0x200: first}, 0x200) == program
    assert replaced_action({0x100: program}, 0x5000) is None
    assert replaced_action({0x100: second, 0x200: first}, 0x100) is None


# -- planning


@pytest.fixture
def case(code_map):
    return lambda *functions, **settings: Case(code_map, *functions, **settings)


def test_never_without_demand(case):
    """A lone ret that nothing else can have is refused, not trapped."""
    assert Strategy.TRAP not in AUTO
    plan = case(RET, MOV + RET).plan((0, WantKind.ENTRY))
    assert plan.splices == ()


def test_one_byte_anywhere(case):
    """Lone, packed against the next function, at the end of a page: one byte is written."""
    for base in (BASE, BASE + 0xFFF):
        plan = case(RET, MOV + RET, base=base, allowed=DEMANDED).plan((0, WantKind.ENTRY))
        assert shape(plan, base) == [("trap", 0, 1, 0, 1)]
        assert head_bytes(plan.splices[0], 0, 0x123450) == b"\xcc"
        assert plan.splices[0].ambiguous  # the next function's entry is behind it


def test_ret_before_padding_is_not_ambiguous(case):
    (splice,) = case(RET + "|8", MOV + RET, allowed=DEMANDED).plan((0, WantKind.ENTRY)).splices
    assert not splice.ambiguous


def test_one_byte_takes_the_next_instruction_along(case):
    """So that a pc behind the trap has met it; unless that one is wanted itself."""
    body = PUSH_RBX + MOV_RDI + "5b" + RET
    plan = case(body + "|4", allowed=DEMANDED).plan((0, WantKind.ENTRY))
    assert shape(plan) == [("trap", 0, 2, 0, 1)]
    assert not plan.splices[0].ambiguous
    assert plan.splices[0].borrowed == 3
    plan = case(body + "|4", allowed=DEMANDED).plan((0, WantKind.ENTRY), (1, WantKind.OFFSET))
    assert shape(plan) == [("trap", 0, 1, 0, 1), ("trap", 1, 1, 1, 1)]
    assert plan.splices[0].ambiguous


def test_several_wants_at_one_instruction_share_a_trap(case):
    plan = case(MOV + RET, allowed=DEMANDED).plan((0, WantKind.ENTRY), (0, WantKind.OFFSET))
    assert [len(splice.wants) for splice in plan.splices] == [2]


def test_own_int3_is_refused(case):
    """Nothing could tell afterwards whose it is."""
    plan = case("cc" + RET, allowed=DEMANDED).plan((0, WantKind.ENTRY))
    assert [refusal.reason for _, refusal in plan.refused] == [Reason.TRAP_UNSAFE]
