"""One stop with a process and threads that are plain objects."""

import signal
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest

from anyprobe.core.memory import MemoryFault
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import decode_range
from anyprobe.journal.records import AT_HANDLER, INTERNAL, Journal, Owner, RecordKind, read_journal
from anyprobe.splice.apply.saved_pcs import FramesOnStacks
from anyprobe.splice.apply.transaction import Transaction
from anyprobe.splice.emitted import EmittedPatch, EmittedSplice, FunctionChange
from anyprobe.splice.plan.splices import PlannedSplice, Strategy, Want, WantKind
from anyprobe.splice.regions.holdings import SpliceRecords
from support.simulated.bare import BareTarget, as_target

LINK, BIAS = 0x1000, 0x3FF000
TEXT, STACK, JOURNAL = 0x400000, 0x408000, 0x40C000
CODE = bytes.fromhex("55 48 89 e5 5d c3")  # push rbp; mov rbp, rsp; pop rbp; ret
NEW = b"\xe9\1\2\3\4"
NOT_IN_A_SYSCALL = (1 << 64) - 1
FIRST, SECOND = TEXT + 0x100, TEXT + 0x2100
"""Two functions on pages that do not touch each other."""


class Target:
    """A process of bytes: text with two functions, a stack, a journal."""

    def __init__(self, memory):
        self.mem, self.threads, self.fail_at, self.parks = memory, [], None, False
        self.records, self.refused = SpliceRecords(), {}
        self.write = memory.write
        for address in (FIRST, SECOND):
            self.write(address, CODE)
        self.journal = Journal(self, JOURNAL, 0x1000)
        self.journal.begin(Owner(bytes(16), 1, 1))
        memory.write = self.checked_write

    def read(self, address, size):
        return self.mem.read(address, size)

    def checked_write(self, address, content):
        if self.fail_at is not None and address & -4096 == self.fail_at and len(content) > 1:
            self.fail_at = None
            raise OSError("no")
        self.write(address, content)

    def mappings(self):
        return [SimpleNamespace(start=STACK, end=STACK + 0x1000, perms="rw-p", path="")]

    def thread(self, pc, *, in_syscall=False, awaiting=None):
        registers = SimpleNamespace(rip=pc, rsp=STACK + 0x800, orig_rax=0 if in_syscall else NOT_IN_A_SYSCALL)
        about = {"awaits": lambda *signals: awaiting in signals, "store_registers": lambda: None}
        self.threads.append(SimpleNamespace(tid=77, registers=registers, **about))
        return self.threads[-1]

    def run(self, *changes):
        transaction = Transaction(self, changes, self.journal, self.records, FramesOnStacks(self))
        transaction.run(SimpleNamespace(process=self, threads=self.threads, waiting=(), mappings=self.mappings()))
        self.refused = {change: transaction.refusal_of(change) for change in changes}
        transaction.finish()

    def recorded(self):
        return {record.address for _, record in read_journal(self.mem, JOURNAL, 0x1000).records}


@pytest.fixture
def target(plain_memory):
    return Target(plain_memory(TEXT, 0x10000))


def splice_at(
    address,
    *,
    patch=0x500000,
    count=3,
    code=CODE,
    old=CODE[:5],
    new=NEW,
    emitted=None,
    whole=b"",
    wants=(),
    hosts_until=0,
):
    insns = tuple(decode_range(code, address - BIAS)[:count])
    planned = PlannedSplice(Strategy.JUMP, address - BIAS, insns, wants, 5, address - BIAS, hosts_until=hosts_until)
    starts = tuple((insn.address + BIAS, patch + 0x20 * number) for number, insn in enumerate(insns))
    copies = tuple((old_place, start + 0x10) for old_place, start in starts)
    emitted = emitted or EmittedPatch(patch, bytes(0x80), starts, copies, patch)
    return EmittedSplice(planned, BIAS, address, old, new, emitted, whole=whole)


def adding(address, **facts):
    return FunctionChange(address, added=(splice_at(address, **facts),))


def test_bytes_are_written_and_listed(target):
    change = adding(FIRST)
    target.run(change)
    assert target.refused[change] is None
    assert target.read(FIRST, 6) == NEW + CODE[5:]
    ((_, record),) = read_journal(target.mem, JOURNAL, 0x1000).records
    assert record.kind is RecordKind.SPLICE
    assert (record.address, record.old, record.new, record.extra) == (FIRST, CODE[:5], NEW, 0x500000)


def test_the_journal_tells_what_is_at_signal_handlers(target):
    """With all that is in the same function: it may lean on that."""
    shown = Want(FIRST - BIAS, WantKind.ENTRY, first=True, internal=True)
    change = FunctionChange(FIRST, added=(splice_at(FIRST, wants=(shown,)), splice_at(SECOND)))
    target.run(change)
    records = [record for _, record in read_journal(target.mem, JOURNAL, 0x1000).records]
    assert [record.extra & (INTERNAL | AT_HANDLER) for record in records] == [INTERNAL | AT_HANDLER, AT_HANDLER]


def test_a_patch_may_begin_anywhere(target):
    """As lines do that have moved into one piece of code: that tells nothing of what it is for."""
    target.run(adding(FIRST, patch=0x500003))
    ((_, record),) = read_journal(target.mem, JOURNAL, 0x1000).records
    assert record.extra == 0x500000


def test_the_journal_lists_a_splice_before_its_bytes_change(target):
    transaction = Transaction(target, [adding(FIRST)], target.journal, target.records, FramesOnStacks(target))
    assert target.recorded() == {FIRST}
    assert target.read(FIRST, 5) == CODE[:5]
    transaction.run(SimpleNamespace(process=target, threads=[], waiting=(), mappings=[]))
    assert target.read(FIRST, 5) == NEW


def test_what_is_taken_out_leaves_memory_and_journal_as_they_were(target):
    change = adding(FIRST)
    before = bytes(target.mem.content[: STACK - TEXT])
    target.run(change)
    target.run(FunctionChange(FIRST, removed=change.added))
    assert target.mem.content[: STACK - TEXT] == before
    assert target.recorded() == set()


def test_bytes_behind_the_written_ones_count_too(target):
    """Of a displaced instruction only some bytes are written; the copy was made from all of them."""
    change = adding(FIRST, whole=CODE)
    target.write(FIRST + 5, b"\xcc")  # behind the five bytes of the jump
    target.run(change)
    assert target.refused[change].reason is Reason.FOREIGN_BYTES
    assert target.read(FIRST, 5) == CODE[:5]


def test_a_module_loaded_anew_has_nothing_to_take_out(target):
    change = adding(FIRST)
    target.run(change)
    target.write(FIRST, CODE)
    removal = FunctionChange(FIRST, removed=change.added)
    target.run(removal)
    assert target.refused[removal] is None
    assert target.read(FIRST, 6) == CODE
    assert target.recorded() == set()


def test_what_is_refused_in_the_stop_puts_back_what_was_found(target):
    change = adding(FIRST)
    target.run(change)
    target.write(FIRST, CODE)
    removal = FunctionChange(FIRST, removed=change.added)
    transaction = Transaction(target, [removal, adding(SECOND)], target.journal, target.records, FramesOnStacks(target))
    transaction.refuse(removal, Refusal(Reason.GONE, FIRST, "gone"))
    transaction.run(SimpleNamespace(process=target, threads=[], waiting=(), mappings=[]))
    transaction.finish()
    assert target.read(FIRST, 6) == CODE
    assert target.read(SECOND, 5) == NEW
    assert target.recorded() == {SECOND}


def test_text_that_is_there_and_cannot_be_read_is_not_taken_for_gone(target):
    change = adding(STACK - 0x1000 + 0x100)
    target.mappings = lambda: [SimpleNamespace(start=TEXT, end=STACK, perms="r-xp", path="")]
    content, target.mem.content = target.mem.content, target.mem.content[: STACK - 0x1000 - TEXT]
    with pytest.raises(MemoryFault):
        target.run(change)
    target.mappings = list
    target.run(change)
    assert target.refused[change].reason is Reason.GONE
    target.mem.content = content


def test_foreign_bytes_refuse_the_whole_function_and_no_other(target):
    never_that_code = splice_at(FIRST + 0x20)
    change, other = FunctionChange(FIRST, added=(splice_at(FIRST), never_that_code)), adding(SECOND)
    target.run(change, other)
    assert target.refused[change].reason is Reason.FOREIGN_BYTES
    assert target.refused[change].address == FIRST + 0x20
    assert target.read(FIRST, 6) == CODE
    assert target.read(SECOND, 5) == NEW
    assert target.recorded() == {SECOND}


def test_bytes_that_change_between_preparation_and_stop(target):
    change, other = adding(FIRST), adding(SECOND)
    transaction = Transaction(target, [change, other], target.journal, target.records, FramesOnStacks(target))
    target.write(FIRST + 2, b"\xcc")
    target.write(SECOND + 0x40, b"\xcc")
    transaction.run(SimpleNamespace(process=target, threads=[], waiting=(), mappings=[]))
    transaction.finish()
    assert transaction.refusal_of(change).reason is Reason.FOREIGN_BYTES
    assert target.read(FIRST, 6) == CODE[:2] + b"\xcc" + CODE[3:]
    assert target.read(SECOND, 5) == NEW
    assert target.read(SECOND + 0x40, 1) == b"\xcc"
    assert target.recorded() == {SECOND}


def test_a_splice_that_somebody_overwrote_is_not_taken_out(target):
    change = adding(FIRST)
    target.run(change)
    target.write(FIRST, b"\xcc")
    removal = FunctionChange(FIRST, removed=change.added)
    target.run(removal)
    assert target.refused[removal].reason is Reason.FOREIGN_BYTES
    assert target.read(FIRST, 5) == b"\xcc" + NEW[1:]
    assert target.recorded() == {FIRST}


# -- threads


@pytest.mark.parametrize(("offset", "number"), [(1, 1), (4, 2)])
def test_a_thread_between_the_overwritten_instructions_moves_into_the_patch(target, offset, number):
    thread = target.thread(FIRST + offset)
    target.run(adding(FIRST))
    assert thread.registers.rip == 0x500000 + 0x20 * number


@pytest.mark.parametrize(("offset", "number"), [(0, 0), (1, 1), (4, 2)])
def test_a_thread_that_has_just_faulted_goes_to_the_copy_itself(target, offset, number):
    """It has arrived before there was a counter, and its handler may go on behind the instruction."""
    thread = target.thread(FIRST + offset, awaiting=signal.SIGSEGV)
    target.run(adding(FIRST))
    assert thread.registers.rip == 0x500000 + 0x20 * number + 0x10


def test_a_thread_about_to_be_given_another_signal_counts(target):
    thread = target.thread(FIRST + 1, awaiting=signal.SIGALRM)
    target.run(adding(FIRST))
    assert thread.registers.rip == 0x500000 + 0x20


TRAPPING = bytes.fromhex("0f 0b 83 c0 02 c3")  # ud2; add eax, 2; ret


@pytest.mark.parametrize(("code", "refused"), [(TRAPPING, True), (CODE, False)])
def test_a_handler_that_skips_what_is_made_to_fault_is_not_led_into_a_jump(target, code, refused):
    """It will return behind the first instruction, which the jump overwrites."""
    target.write(FIRST, code)
    signal_frame(target, FIRST)
    target.thread(SECOND + 0x800)
    change = adding(FIRST, code=code, old=code[:5])
    target.run(change)
    assert (target.refused[change] is not None) == refused
    assert target.read(FIRST, 5) == (code[:5] if refused else NEW)


@pytest.mark.parametrize("pc", [FIRST - 1, FIRST, FIRST + 5, SECOND])
def test_threads_elsewhere_stay(target, pc):
    thread = target.thread(pc)
    target.run(adding(FIRST))
    assert thread.registers.rip == pc


def test_a_thread_at_no_boundary_refuses(target):
    thread = target.thread(FIRST + 2)
    change = adding(FIRST)
    target.run(change)
    assert isinstance(target.refused[change], Refusal)
    assert thread.registers.rip == FIRST + 2
    assert target.read(FIRST, 6) == CODE


def test_a_thread_inside_a_system_call_refuses_and_nobody_moves(target):
    code = bytes.fromhex("0f 05 90 90 90 c3")  # syscall; nop; nop; nop; ret
    target.write(FIRST, code)
    change, other = adding(FIRST, code=code, old=code[:5], count=4), adding(SECOND)
    moving = target.thread(FIRST + 3)
    waiting = target.thread(FIRST + 2, in_syscall=True)
    target.run(change, other)
    assert target.refused[change].reason is Reason.THREAD_IN_SYSCALL
    assert (moving.registers.rip, waiting.registers.rip) == (FIRST + 3, FIRST + 2)
    assert target.read(FIRST, 6) == code
    assert target.read(SECOND, 5) == NEW
    assert target.recorded() == {SECOND}


SLEEPING = bytes.fromhex("0f 05 90 90 90 c3")  # syscall; nop; nop; nop; ret
ASLEEP_IN_COPY = 0x500012


def with_system_call(*, copied=True):
    """Return the change that displaces ``SLEEPING``; the system call is copied to the patch, or rewritten there."""
    patch = bytearray(0x80)
    patch[0x10:0x12] = SLEEPING[:2] if copied else b"\x90\x90"
    places = (0x500000, 0x500020, 0x500030, 0x500040)
    starts = tuple((FIRST + offset, place) for offset, place in zip((0, 2, 3, 4), places, strict=True))
    copies = ((FIRST, 0x500010), *starts[1:])
    emitted = EmittedPatch(0x500000, bytes(patch), starts, copies, 0x500000)
    return adding(FIRST, code=SLEEPING, old=SLEEPING[:5], count=4, emitted=emitted)


@pytest.mark.parametrize("copied", [True, False])
def test_a_thread_asleep_goes_on_behind_another_syscall_only(target, copied):
    target.write(FIRST, SLEEPING)
    change, waiting = with_system_call(copied=copied), target.thread(FIRST + 2, in_syscall=True)
    target.run(change)
    assert waiting.registers.rip == (ASLEEP_IN_COPY if copied else FIRST + 2)
    assert (target.refused[change] is None) == copied


def test_a_thread_asleep_before_the_next_splice_moves_all_the_same(target):
    """Its pc is where that splice begins, but the kernel would restart the call two bytes before."""
    code = bytes.fromhex("48 31 c0 0f 05 90 c3")  # xor rax, rax; syscall; nop; ret
    target.write(FIRST, code)
    patch = EmittedPatch(
        0x500000,
        code[:5] + bytes(5),
        ((FIRST, 0x500000), (FIRST + 3, 0x500003)),
        ((FIRST, 0x500000), (FIRST + 3, 0x500003), (FIRST + 5, 0x500005)),
        0x500000,
    )
    change = adding(FIRST, code=code, old=code[:5], count=2, emitted=patch)
    waiting = target.thread(FIRST + 5, in_syscall=True)
    target.run(change)
    assert waiting.registers.rip == 0x500005


def test_a_thread_asleep_in_a_patch_that_goes_wakes_in_the_text(target):
    target.write(FIRST, SLEEPING)
    change = with_system_call()
    target.run(change)
    waiting = target.thread(ASLEEP_IN_COPY, in_syscall=True)
    read = target.mem.read
    target.mem.read = lambda at, size: SLEEPING[:2] if at == ASLEEP_IN_COPY - 2 else read(at, size)
    target.run(FunctionChange(FIRST, removed=change.added))
    assert waiting.registers.rip == FIRST + 2
    assert target.read(FIRST, 5) == SLEEPING[:5]


def signal_frame(target, pc):
    """Write rip, eflags and the selectors as the kernel lays them out."""
    target.write(STACK + 0x900, struct.pack("<QQQ", pc, 0x246, 0x33))


@pytest.mark.parametrize(("offset", "refused"), [(-1, False), (0, False), (1, True), (4, True), (5, False)])
def test_a_signal_handler_that_will_return_into_the_bytes(target, offset, refused):
    signal_frame(target, FIRST + offset)
    target.thread(SECOND + 0x800)
    change, other = adding(FIRST), adding(SECOND)
    target.run(change, other)
    assert target.refused[other] is None
    assert (target.refused[change] is not None) == refused
    assert target.read(FIRST, 5) == (CODE[:5] if refused else NEW)
    if refused:
        assert target.refused[change].reason is Reason.SIGNAL_CONTEXT_IN_JTPR
        assert target.recorded() == {SECOND}


def test_a_thread_in_a_patch_that_goes_stays_there(target):
    change = adding(FIRST)
    target.run(change)
    thread = target.thread(0x500030)
    target.run(FunctionChange(FIRST, removed=change.added))
    assert thread.registers.rip == 0x500030
    assert target.read(FIRST, 5) == CODE[:5]


def replacing(target):
    change = adding(FIRST)
    target.run(change)
    again = splice_at(FIRST, patch=0x600000, new=b"\xe9\5\6\7\x08")
    return FunctionChange(FIRST, removed=change.added, added=(again,))


@pytest.mark.parametrize("pc", [0x500000, 0x500025, 0x500030, 0x500050], ids=["head", "actions", "second", "third"])
def test_a_thread_in_the_old_patch_stays_there_and_counts_once(target, pc):
    change = replacing(target)
    thread = target.thread(pc)
    target.run(change)
    assert target.refused[change] is None
    assert thread.registers.rip == pc
    assert target.read(FIRST, 5) == b"\xe9\5\6\7\x08"


# -- failures


@pytest.mark.parametrize("page", [FIRST & -4096, SECOND & -4096])
def test_a_failed_write_undoes_all(target, page):
    before = bytes(target.mem.content[: STACK - TEXT])
    transaction = Transaction(
        target, [adding(FIRST), adding(SECOND)], target.journal, target.records, FramesOnStacks(target)
    )
    target.fail_at = page
    with pytest.raises(OSError, match="no"):
        transaction.run(SimpleNamespace(process=target, threads=[], waiting=(), mappings=[]))
    assert target.mem.content[: STACK - TEXT] == before


# -- what a splice covers


def test_the_bytes_that_nobody_may_return_to():
    assert splice_at(FIRST).interior == (FIRST + 1, FIRST + 5)
    one = splice_at(FIRST, count=1, code=bytes.fromhex("b8 01 00 00 00"))
    assert one.interior is None
    dead = replace(splice_at(FIRST), is_springboard=True)
    assert dead.interior is None
    assert dead.displaced == (FIRST, FIRST)


# -- springboards in displaced bytes

BOARD = b"\xe9" + (0x500060 - (FIRST + 10 + 5)).to_bytes(4, "little", signed=True)
"""jmp 0x500060, at FIRST + 10"""


def hosted(target):
    """Return a change that puts a springboard into what a jump in front has displaced."""
    code = bytes.fromhex("48 89 c8  48 89 c8  48 89 c8  48 89 c8  48 89 c8  c3")  # mov rax, rcx, five times; ret
    target.write(FIRST, code)
    host = splice_at(FIRST, count=5, code=code, old=code[:5], hosts_until=FIRST + 15 - BIAS)
    guest = splice_at(SECOND)
    board = EmittedSplice(guest.planned, BIAS, FIRST + 10, code[10:15], BOARD, None, is_springboard=True)
    return code, FunctionChange(FIRST, added=(host, board))


@pytest.mark.parametrize("offset", [3, 6, 9, 12])
def test_nobody_may_come_back_in_front_of_a_springboard(target, offset):
    code, change = hosted(target)
    signal_frame(target, FIRST + offset)
    target.thread(SECOND + 0x800)
    target.run(change)
    assert target.refused[change].reason is Reason.SIGNAL_CONTEXT_IN_JTPR
    assert target.read(FIRST, len(code)) == code


def test_who_comes_back_behind_a_springboard_does_no_harm(target):
    code, change = hosted(target)
    signal_frame(target, FIRST + 15)
    target.thread(SECOND + 0x800)
    target.run(change)
    assert target.refused[change] is None
    assert target.read(FIRST, 16) == NEW + code[5:10] + BOARD + code[15:]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_thread_in_bytes_that_are_dead_from_now_on_moves_wherever_the_springboard_is(target, number):
    _, change = hosted(target)
    thread = target.thread(FIRST + 3 * number)
    target.run(change)
    assert target.refused[change] is None
    assert thread.registers.rip == 0x500000 + 0x20 * number


def test_a_thread_at_a_springboard_that_goes_must_still_come_to_its_patch(target):
    code, change = hosted(target)
    target.run(change)
    thread = target.thread(FIRST + 10)
    target.run(FunctionChange(FIRST, removed=change.added))
    assert thread.registers.rip == 0x500060
    assert target.read(FIRST, len(code)) == code


def test_a_springboard_that_a_handler_will_come_back_to_stays(target):
    _, change = hosted(target)
    target.run(change)
    signal_frame(target, FIRST + 10)
    target.thread(SECOND + 0x800)
    removal = FunctionChange(FIRST, removed=change.added)
    target.run(removal)
    assert target.refused[removal].reason is Reason.SIGNAL_CONTEXT_IN_JTPR
    assert target.read(FIRST + 10, 5) == BOARD


# -- what is no process


@pytest.fixture
def bare():
    """A target of which nothing is known but memory, and tasks with their pcs."""
    target = BareTarget()
    target.mem.add(TEXT, 0x4000, "r-xp", "kernel", inode=1)
    target.mem.add(JOURNAL, 0x1000, "rw-p")
    for address in (FIRST, SECOND):
        target.mem.write(address, CODE)
    return target


def change_bare(bare, records, *changes):
    """Make changes; return what is listed afterwards, and why each change is refused."""
    target, saved_pcs = as_target(bare)
    journal = Journal(target.mem, JOURNAL, 0x1000)
    journal.begin(Owner(bytes(16), 1, 1))
    transaction = Transaction(target, changes, journal, records, saved_pcs)
    transaction.rehearse()
    with target.stop() as stop:
        transaction.run(stop)
    transaction.finish()
    listed = {record.address for _, record in read_journal(target.mem, JOURNAL, 0x1000).records}
    return listed, [transaction.refusal_of(change) for change in changes]


def test_a_target_that_is_no_process_is_spliced_by_the_same_transaction(bare):
    change, records = adding(FIRST), SpliceRecords()
    assert change_bare(bare, records, change) == ({FIRST}, [None])
    assert bare.mem.read(FIRST, 6) == NEW + CODE[5:]
    assert change_bare(bare, records, FunctionChange(FIRST, removed=change.added)) == (set(), [None])
    assert bare.mem.read(FIRST, 6) == CODE


def test_tasks_of_such_a_target_move_into_patches_or_are_waited_for_like_threads(bare):
    between, elsewhere = bare.add_task(FIRST + 1), bare.add_task(TEXT)
    interrupted = bare.add_task(TEXT, returns=[TEXT + 0x300, SECOND + 4])
    records = SpliceRecords()
    listed, (first, second) = change_bare(bare, records, adding(FIRST), adding(SECOND))
    assert (listed, first) == ({FIRST}, None)
    assert (between.moved, elsewhere.moved, interrupted.moved) == ([0x500020], [], [])
    assert second.reason is Reason.SIGNAL_CONTEXT_IN_JTPR
    assert bare.mem.read(SECOND, 6) == CODE
    interrupted.returns = [SECOND + 5]
    _, (second,) = change_bare(bare, records, adding(SECOND))
    assert second is None


def test_a_write_that_fails_in_such_a_target_takes_all_back(bare):
    between = bare.add_task(FIRST + 1)
    bare.mem.fail_at = SECOND & -4096
    with pytest.raises(OSError, match="the test wants"):
        change_bare(bare, SpliceRecords(), adding(FIRST), adding(SECOND))
    assert [bare.mem.read(at, 6) for at in (FIRST, SECOND)] == [CODE, CODE]
    assert between.registers.rip == FIRST + 1
