"""The generated routines that all patches of one bank share: first hits, timing at entry, timing at exits.

Patches call them with the stack pointer already below the red zone and one argument pushed. On entry the stack is
``[rsp]`` return address, ``[rsp+8]`` argument, and the site's own stack pointer is ``rsp + 144`` (128 bytes of red
zone, argument, return address). Every register and flag is preserved.

A signal may interrupt any instruction here and its handler may come through the same routines on the same thread:
every change of shared words is one read-modify-write instruction, an instance is reserved before it is filled, and a
reserved but unfilled instance holds stack pointer 0, which nothing matches.
"""

from collections.abc import Callable
from dataclasses import dataclass

from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.layout import COST, RECORD, SP, START, BankLayout
from anyprobe.data.snapshots.costs import NO_COSTS, Costs
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.translate.progress import EXITS, Stretch, progress_in_routines, stretches_of

CHILDREN = 2048
"""How far after its gate a bank has the word of fork children: wiped, too, so that a child's child has a new block."""
ADOPTED = 3072
"""How far after the first gate page's start, and its index, a bank has the word that says which blocks a fork child
has."""
ADOPTING = 128
"""Banks of a session that have such a word, the first ones."""
_IS_OWN = f"""mov eax, fs:[{at.TID_OFFSET}]
            cmp [rcx+{at.BLOCK_TID}], eax; jne enter_other
        enter_own:"""


@dataclass(frozen=True, slots=True)
class RoutineFacts:
    """What the routines need to know of their bank."""

    layout: BankLayout
    data: int
    """Address of the bank's region in the target."""
    gate: int
    """Address of the bank's word on the wipe-on-fork page: a mask that every block pointer has, 0 in fork children."""
    slot: int
    """Offset of the thread slot from the thread pointer."""
    clock: int = 0
    """Address of the vdso's ``clock_gettime``, which is called for the time in nanoseconds; 0: ``rdtsc``."""
    numbered: int = 0
    """Numbers that threads may have by earlier banks: no thread gets one of these by this bank."""
    near: int = 0
    """Address of the counters that all threads share, where these have no blocks; 0: they have."""
    mask: int = 0
    """What an open gate holds."""
    adopted: int = 0
    """Address of a word on a wipe-on-fork page that says which blocks a fork child has; 0: it can have none."""
    closed: int = 0
    """Address of a word that is not 0 where fork children must not make system calls for that."""
    change: int = 0
    """Address of a word that says which return points the text of a process has jumps at; 0: there is one process."""
    adopt: int = 0
    """Address of the routine that gives it some; 0: it is among those that are assembled."""
    costs: Costs = NO_COSTS
    """What timing probes cost, which is left out of times."""
    dark: int = 0
    """Address of a word that is not 0 once a thread may not read the time stamp counter; 0: that cannot come."""
    rate: int = 0
    """Ticks of a nanosecond, times two to the 32, where times are those on processors."""

    @property
    def own(self) -> int:
        """Address of the word, on the same page, that leads a fork child to the block that is its own."""
        return self.gate + CHILDREN

    @property
    def shared(self) -> int:
        """Address of the shared block."""
        return self.near or self.data + self.layout.shared_offset


@dataclass(frozen=True, slots=True)
class Routines:
    """Addresses of the generated routines."""

    count: int
    enter: int
    """0, as those below: the bank has no timing records."""
    leave: int
    leave_tail: int
    leave_caller: int = 0
    stretches: tuple[Stretch, ...] = ()
    adopt: int = 0
    unwind: int = 0
    """0: it is not known which calls have made which."""
    finish: int = 0
    """How far after the routines of exits the copies are that return when an exit is recorded, and restore nothing."""
    arrive: int = 0
    """0, but for goroutines."""
    settle: int = 0
    purge: int = 0
    """What ``enter`` calls, for other code that is like it; 0 as ``unwind`` and ``enter`` are."""
    leave_switch: int = 0
    """0 as ``unwind`` is."""


def assemble_routines(facts: RoutineFacts, address: int) -> tuple[bytes, Routines, Callable[[], str]]:
    """Return the code of all routines placed at ``address``, where each begins, and the listing.

    A bank without timing records has no routines of timing: they are most of the code.
    """
    asm = Assembler()
    timed = facts.layout.records > 0
    emit_acquire(asm, facts)
    if facts.adopted:
        from anyprobe.splice.codegen.adoption import emit_adopt

        emit_adopt(asm, facts)
    _process_block(asm, facts)
    _count(asm)
    if timed:
        from anyprobe.splice.codegen.timing.exit_routines import emit_leave

        emit_enter(asm, facts)
        if facts.layout.nested:
            from anyprobe.splice.codegen.timing.left_calls import emit_settle, emit_unwind

            emit_unwind(asm, facts, facts.layout, facts.clock, facts.dark)
        from anyprobe.splice.codegen.timing.leftovers import emit_purge

        for prefix in ("", "finish_"):
            for name in EXITS if facts.layout.nested else EXITS[:-1]:
                emit_leave(asm, facts, prefix + name)
            emit_purge(asm, facts.layout, prefix + "purge")
            if facts.layout.nested:
                emit_settle(asm, prefix + "settle", facts.layout)
        from anyprobe.splice.codegen.timing.clocks import emit_called

        emit_called(asm, facts)
    names = ("count", "adopt", "enter", *EXITS, "unwind", "settle", "purge")
    count, adopt, enter, leave, leave_tail, leave_caller, leave_switch, unwind, settle, purge = (
        address + asm.offset_of(name) if asm.has(name) else 0 for name in names
    )
    code = asm.finish(address)
    finish = address + asm.offset_of("finish_leave") - leave if timed else 0
    stretches = stretches_of(asm, address, len(code), progress_in_routines())
    routines = Routines(
        count, enter, leave, leave_tail, leave_caller, stretches, adopt, unwind, finish, settle=settle, purge=purge,
        leave_switch=leave_switch,
    )  # fmt: skip
    return code, routines, asm.listing_at(address)


def emit_acquire(asm: Assembler, facts: RoutineFacts) -> None:
    """Emit ``acquire``: rcx = this thread's block, made on the first hit, or 0. Clobbers rax, rdx, flags.

    0 means: no block left, or a fork child without blocks of its own: its copy of the gate is wiped, and the inherited
    slots belong to the parent's threads. A signal handler that makes a block between this one and the store costs one
    block, never a count.

    Of threads with the same thread pointer only one is alive: it takes over the block of the one before it, as it does
    where glibc gives it the other's stack and with it the slot. So programs whose threads come and go need few blocks.
    """
    layout = facts.layout
    asm.code(
        """
        acquire:
            mov rax, [abs gate]
            test rax, rax; jz forked
            mov rcx, fs:[slot]
            test rax, rcx; jnz acquired
            mov rdx, region
        """,
        gate=facts.gate,
        slot=facts.slot,
        region=facts.data,
    )
    _emit_hint(asm)
    asm.code(
        f"""
            mov eax, [rdx+rax*4+{at.BLOCK_HINTS}]
            test eax, eax; jz acquire_new
            imul rcx, rax, stride
            lea rcx, [rdx+rcx+shared_offset]
            mov rax, fs:[0x10]
            cmp [rcx+{at.BLOCK_OWNER}], rax; je taken_over
        acquire_new:
            mov eax, 1
            lock xadd [rdx+{at.NEXT_BLOCK}], rax
            cmp rax, blocks; jae none
            inc eax
            imul rcx, rax, stride
            lea rcx, [rdx+rcx+shared_offset]
            push rax
        """,
        stride=layout.stride,
        shared_offset=layout.shared_offset,
        blocks=layout.blocks,
    )
    _emit_hint(asm)
    asm.code(
        f"""
            lea rdx, [rdx+rax*4+{at.BLOCK_HINTS}]
            mov eax, entered; mov [rcx+{at.BLOCK_ENTERED}], rax; mov eax, left; mov [rcx+{at.BLOCK_LEFT}], rax
            mov rax, fs:[0x10]; mov [rcx+{at.BLOCK_OWNER}], rax
            {f"mov rax, nowhere; mov [rcx+{at.BLOCK_PAGE}], rax" if layout.on_processors else ""}
            pop rax; mov [rdx], eax
        taken_over:
            mov fs:[slot], rcx
        acquired:
            ret
        """,
        slot=facts.slot,
        entered=facts.costs.entered,
        left=facts.costs.left,
        nowhere=facts.data + at.NOWHERE,
    )
    if facts.adopted:
        asm.code(
            """
            forked:
                call adopt
                test rax, rax; jnz acquire
            """,
            adopt=facts.adopt or "adopt",
        )
    else:
        asm.label("forked")
    asm.code("""
    none:
        xor ecx, ecx; ret
    """)


def _emit_hint(asm: Assembler) -> None:
    """Emit code for the number of the hint for this thread in rax; stacks lie at regular distances, so it is hashed."""
    asm.code(f"""
        mov rax, fs:[0x10]; shr rax, 12
        imul eax, eax, {at.GOLDEN_32}; shr eax, {32 - at.HINT_BITS}
    """)


def _count(asm: Assembler) -> None:
    """Emit ``count``: a hit of a counter by a thread without a block. Argument: offset of the counter."""
    asm.code(
        """
        count:
            pushfq; push rax; push rcx; push rdx
            call acquire
            mov rdx, [rsp+0x28]
            test rcx, rcx; jz count_shared
            inc qword [rcx+rdx]
        count_done:
            pop rdx; pop rcx; pop rax; popfq; ret
        count_shared:
            call process
            lock inc qword [rcx+rdx]
        count_shared_done:
            jmp count_done
        """
    )


def _process_block(asm: Assembler, facts: RoutineFacts) -> None:
    """Emit ``process``: rcx = the block of a fork child, or the shared one. Clobbers rax, flags.

    All threads of a child share its block, and change it by atomic operations only. It is made with the child's first
    hit; of two threads, or a thread and its signal handler, that make one each, both blocks are the child's: who owns a
    block is written there. Children have no more than half of all blocks, the others belong to threads.
    """
    layout = facts.layout
    asm.code(
        f"""
        process:
            mov rax, [abs own]; mov rcx, rax
            test rax, rax; jnz process_known
            mov rcx, shared
            mov rax, [abs gate]
            test rax, rax; jnz process_known
            push rdx
            mov rdx, region
            cmp qword [rdx+{at.NEXT_BLOCK}], half; jae process_full
            mov eax, 1
            lock xadd [rdx+{at.NEXT_BLOCK}], rax
            cmp rax, half; jae process_full
            inc eax
            imul rcx, rax, stride
            lea rcx, [rdx+rcx+shared_offset]
            mov eax, fs:[{at.TID_OFFSET}]; bts rax, {at.CHILD_BIT}
            mov [rcx+{at.BLOCK_OWNER}], rax
            mov rdx, own; mov [rdx], rcx
        process_none:
            pop rdx
        process_known:
            ret
        process_full:
            mov qword [rdx+{at.CROWDED}], 1; jmp process_none
        """,
        own=facts.own,
        gate=facts.gate,
        shared=facts.shared,
        region=facts.data,
        half=layout.blocks // 2,
        stride=layout.stride,
        shared_offset=layout.shared_offset,
    )


def emit_enter(
    asm: Assembler,
    facts: RoutineFacts,
    prepare: Callable[[], None] | None = None,
    *,
    purge: int | str = "purge",
    settle: int | str = "settle",
) -> None:
    """Emit ``enter``: push an instance of the calling function. Argument: offset of its timing record.

    ``prepare`` emits code that pushes the return address that is to replace the site's, 0 for none: then the call is
    missed. It is written once the instance is complete. ``purge``, ``settle``: where these are, if not here.
    """
    from anyprobe.splice.codegen.timing import clocks  # counts need none

    layout = facts.layout
    pushed = 8 if prepare else 0
    argument, site = 0x30 + pushed, 0xB8 + pushed
    asm.code("""
    enter:
        # lahf and seto keep all arithmetic flags at a fraction of the cost of pushf and popf
        push rax; lahf; seto al; push rax
        push rcx; push rdx; push rsi
    """)
    if prepare:
        prepare()
        asm.code("cmp qword [rsp], 0; je enter_shared_miss")
    asm.code(
        f"""
            mov rcx, fs:[slot]; mov rax, gate; test [rax], rcx; jz enter_first
        enter_block:
            {"mov rax, dark; cmp dword [rax], 0; jne enter_missed" if facts.dark else ""}
            {_IS_OWN if layout.by_thread else ""}
            mov esi, 1
            xadd [rcx+{at.BLOCK_TOP}], rsi
        enter_reserved:
            cmp rsi, maxactive; jae enter_full
            shl rsi, 6
        """,
        slot=facts.slot,
        gate=facts.gate,
        dark=facts.dark,
        maxactive=layout.maxactive,
    )
    if layout.nested:
        from anyprobe.splice.codegen.timing import nested_calls

        nested_calls.emit_entered(asm, argument, site, facts.data + layout.nodes_offset, layout)
    asm.code(f"mov rax, [rsp+argument]; mov [rcx+rsi+{RECORD}], rax", argument=argument)
    if prepare:
        asm.code(f"mov qword [rcx+rax+{at.RECORD_REPLACED}], 1")
    clocks.emit_read_at_entry(asm, facts)
    asm.code(
        f"""
            mov rdx, [rcx+{at.BLOCK_COST}]; mov [rcx+rsi+{COST}], rdx
            sar rdx, {at.COST_BITS}; sub rax, rdx; mov [rcx+rsi+{START}], rax
            mov rdx, [rcx+{at.BLOCK_ENTERED}]; add [rcx+{at.BLOCK_COST}], rdx
            lea rax, [rsp+site]; mov [rcx+rsi+{SP}], rax
        """,
        site=site,
    )
    if prepare:
        asm.code("mov rsi, [rsp]; mov [rax], rsi")
    asm.label("enter_done")
    if prepare:
        asm.code("pop rsi")
    asm.code(
        f"""
            pop rsi; pop rdx; pop rcx; pop rax
            add al, 0x7f; sahf; pop rax; ret
        enter_first:
            call acquire
            test rcx, rcx; jnz enter_block
        enter_shared_miss:
            mov rcx, shared; mov rax, [rsp+argument]
            lock inc qword [rcx+rax+{at.RECORD_MISSED}]
        enter_shared_missed:
            jmp enter_done
        """,
        shared=facts.shared,
        argument=argument,
    )
    clocks.emit_waits_at_entry(asm, facts)
    if layout.by_thread:
        _enter_other(asm, facts)
    from anyprobe.splice.codegen.timing.leftovers import emit_full
    from anyprobe.splice.codegen.timing.slow_paths import are_timed

    emit_full(asm, layout, argument, site, purge, facts.costs.entered, timed=are_timed(facts.costs, facts.clock))
    if layout.nested:
        nested_calls.emit_entering(asm, argument, site, settle, layout)
        if layout.nodes:
            nested_calls.emit_new_node(asm)


def _enter_other(asm: Assembler, facts: RoutineFacts) -> None:
    """Emit the rare path of ``enter`` where threads are told apart: rcx is the block of another one, or of none.

    A thread whose stack was another's before finds that one's block. It gets one of its own, if there is any left; if
    there is none, it is noted that calls of several threads are in this one.
    """
    asm.code(
        f"""
        enter_other:
            cmp dword [rcx+{at.BLOCK_TID}], 0; je enter_mine
            mov rdx, region; cmp qword [rdx+{at.NEXT_BLOCK}], blocks; jae enter_among
            call acquire_new
            test rcx, rcx; jnz enter_mine
        enter_among:
            mov rcx, fs:[slot]; mov eax, {at.ANY_THREAD}
            mov [rcx+{at.BLOCK_TID}], eax; jmp enter_own
        enter_mine:
            mov eax, fs:[{at.TID_OFFSET}]
            mov [rcx+{at.BLOCK_TID}], eax; jmp enter_own
        """,
        region=facts.data,
        blocks=facts.layout.blocks,
        slot=facts.slot,
    )
