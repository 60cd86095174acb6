"""The generated routines that open and end the calls of Go functions, without a stack.

A Go function may have no stack left, so patches come by a jump, with ``r13`` as the place where they go on: at an
instruction that does nothing, whose operand is the offset of the timing record. At the entry and at the returns of what
Go's compiler makes, ``r12``, ``r13``, ``r15`` and the flags hold nothing (Go's ``abi-internal.md``), and ``r14`` is the
goroutine. Four other registers are kept in the goroutine's *head* (``data.layouts.goroutines``), which is its alone.

A call is known by how far its stack pointer is below the top of the goroutine's stack, which stays the same where the
runtime moves the stack. What is deeper than a call that begins or ends was left behind, by a panic or
``runtime.Goexit``. Nothing interrupts the routines that could run them for the same goroutine: Go neither preempts nor
moves what runs at a pc that it does not know, and its signal handlers run on another stack. Where these still have the
goroutine of what they interrupt, the stack pointer is outside of its stack; such calls are missed, as those without a
goroutine, and those of fork children, whose copy of the gate is wiped.
"""

from dataclasses import dataclass

from anyprobe.data.layouts import goroutines as at
from anyprobe.data.layouts.layout import (
    PASSED_ON,
    RECORD_LEFT,
    RECORD_MISSED,
    RECORD_OUTERMOST,
    RECORD_ROOTS,
    RECORD_SELF,
    RECORD_TAIL,
    RECORD_UNMATCHED,
    BankLayout,
)
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.routines import Routines
from anyprobe.splice.codegen.timing.durations import emit_duration, emit_extremes
from anyprobe.splice.codegen.timing.goroutine_chains import STACK_HIGH, STACK_LOW, seek_head, take_call
from anyprobe.splice.codegen.timing.goroutine_trees import ARGUMENT, emit_in_node, emit_node

_SAVED = ("rax", "rcx", "rdx", "rsi")


@dataclass(frozen=True, slots=True)
class GoroutineFacts:
    """What the routines need to know of their bank."""

    layout: BankLayout
    shared: int
    """Address of the first block; the others follow."""
    table: int
    """Address of the heads and calls."""
    gate: int
    """Address of a word that is 0 in fork children."""
    number_at: int
    """Where ``runtime.g`` has the goroutine's number."""
    dark: int = 0
    """Address of the word that says that the time stamp counter may not be read any more."""


def assemble_goroutine_routines(facts: GoroutineFacts, address: int) -> tuple[bytes, Routines]:
    """Return the code of all routines placed at ``address``, and where each begins."""
    asm = Assembler()
    _enter(asm, facts)
    for name in ("leave", "leave_tail", "leave_caller"):
        _leave(asm, facts, name)
    _jump(asm, facts)
    _arrive(asm, facts)
    enter, leave, leave_tail, leave_caller, arrive = (
        address + asm.offset_of(name) for name in ("enter", "leave", "leave_tail", "leave_caller", "arrive")
    )
    return asm.finish(address), Routines(0, enter, leave, leave_tail, leave_caller, arrive=arrive)


def _find_head(asm: Assembler, facts: GoroutineFacts, name: str, foreign: str, unknown: str) -> None:
    """Emit: r15 = the goroutine's head, or go to ``foreign`` where there is none, to ``unknown`` at a free one.

    After ``unknown``, r15 = the free head, and r12d what is left of the search, which goes on at ``name_next``.
    """
    asm.code(
        f"""
            test r14, r14; jz {foreign}
            mov r12, [r14+{STACK_HIGH}]; mov r15, r12
            sub r12, rsp; sub r15, [r14+{STACK_LOW}]
            cmp r12, r15; ja {foreign}
            mov r15, gate; cmp qword [r15], 0; je {foreign}
            {"mov r15, dark; cmp dword [r15], 0; jne " + foreign if facts.dark else ""}
            {seek_head(name, "r15", "r12", "r12", unknown=unknown, nowhere=foreign)}
        """,
        gate=facts.gate,
        dark=facts.dark,
        heads=facts.table,
    )


def _begin(asm: Assembler, facts: GoroutineFacts, *, clock: bool) -> None:
    """Emit: four registers are free; r12 = the distance, ecx = the record, rax = the number as the head has it.

    ``clock``: rdx = the time.
    """
    for number, name in enumerate(_SAVED):
        asm.code(f"mov [r15+{at.HEAD_SAVED + 8 * number}], {name}")
    if clock:
        asm.code("rdtsc; shl rdx, 32; or rdx, rax")
    asm.code(
        f"""
            mov r12, [r14+{STACK_HIGH}]; sub r12, rsp
            mov ecx, [r13+{ARGUMENT}]
            mov rax, [r14+number]; bts rax, {at.TAKEN_BIT}
        """,
        number=facts.number_at,
    )


def _end(asm: Assembler, name: str) -> None:
    """Emit the end of a routine."""
    asm.label(f"{name}_done")
    for number, register in enumerate(_SAVED):
        asm.code(f"mov {register}, [r15+{at.HEAD_SAVED + 8 * number}]")
    asm.code("jmp r13")


def _count(asm: Assembler, facts: GoroutineFacts, field: int, record: str = "rcx", scratch: str = "rdx") -> None:
    """Emit: a field of a record goes up by one, for all goroutines together."""
    asm.code(f"mov {scratch}, shared; lock inc qword [{scratch}+{record}+{field}]", shared=facts.shared)


def _count_alone(asm: Assembler, facts: GoroutineFacts, label: str, field: int) -> None:
    """Emit: the same where no head is found."""
    asm.code(f"{label}:\n mov r12d, [r13+{ARGUMENT}]")
    _count(asm, facts, field, "r12", "r15")
    asm.code("jmp r13")


def _drop(asm: Assembler, facts: GoroutineFacts, name: str) -> None:
    """Emit: the call rsi was left behind; what it has called was called by its caller. rax, rdx are overwritten."""
    asm.code(f"""
        {name}:
            cmp qword [rsi+{at.CALL_DISTANCE}], 0; je {name}_gone
            mov qword [rsi+{at.CALL_DISTANCE}], 0
            mov eax, [rsi+{at.CALL_RECORD}]
    """)
    _count(asm, facts, RECORD_LEFT, "rax")
    if facts.layout.nested:
        asm.code(f"""
            add rax, rdx
            mov rdx, [rsi+{at.CALL_WITHIN}]
            cmp qword [rsi+{at.CALL_BELOW}], 0; je {name}_root
            mov rax, [rsi+{at.CALL_BELOW}]; add [rax+{at.CALL_WITHIN}], rdx
            jmp {name}_gone
        {name}_root:
            lock add [rax+{RECORD_ROOTS}], rdx
        """)
    asm.code(f"""
        {name}_gone:
            mov rsi, [rsi+{at.CALL_BELOW}]; mov [r15+{at.HEAD_TOP}], rsi
    """)


def _enter(asm: Assembler, facts: GoroutineFacts) -> None:
    """Emit ``enter``: open a call."""
    asm.label("enter")
    _find_head(asm, facts, "enter", "enter_missed", "enter_claim")
    asm.label("enter_found")
    _begin(asm, facts, clock=False)
    # a call at the same place is one that has jumped here, was left behind there, or is another probe's at this entry
    asm.code(f"""
            cmp rax, [r15+{at.HEAD_NUMBER}]; jne enter_another
        enter_known:
            mov rsi, [r15+{at.HEAD_TOP}]
        enter_top:
            test rsi, rsi; jz enter_bottom
            cmp [rsi+{at.CALL_DISTANCE}], r12; ja enter_drop; je enter_equal
        enter_above:
            mov rax, [rsi+{at.CALL_ABOVE}]
            test rax, rax; jz enter_more
        enter_call:
            mov [rax+{at.CALL_RECORD}], rcx
    """)
    if facts.layout.nested:
        asm.code(f"mov qword [rax+{at.CALL_WITHIN}], 0; mov qword [rax+{at.CALL_OUTERMOST}], 0")
        if facts.layout.nodes:
            emit_node(asm, facts.layout, facts.shared - facts.layout.shared_offset + facts.layout.nodes_offset)
        asm.code(f"""
            test rsi, rsi; jz enter_looked
        enter_look:
            cmp [rsi+{at.CALL_RECORD}], ecx; je enter_recursion
            mov rsi, [rsi+{at.CALL_BELOW}]
            test rsi, rsi; jnz enter_look
        enter_looked:
        """)
    asm.code(f"""
            mov rsi, rax
            mov [r15+{at.HEAD_TOP}], rsi
            rdtsc; shl rdx, 32; or rax, rdx
            mov [rsi+{at.CALL_START}], rax; mov [rsi+{at.CALL_DISTANCE}], r12
    """)
    _end(asm, "enter")
    _drop(asm, facts, "enter_drop")
    asm.code(f"""
            jmp enter_top
        enter_equal:
            cmp dword [rsi+{at.CALL_JUMPED}], {at.JUMPED}; je enter_above
            ja enter_drop
    """)
    if facts.layout.nested:
        asm.code(f"""
            jmp enter_drop
        enter_recursion:
            mov qword [rax+{at.CALL_OUTERMOST}], 1; jmp enter_looked
        """)
    else:
        asm.code(f"""
            cmp [rsi+{at.CALL_RECORD}], ecx; je enter_drop
            jmp enter_above
        """)
    asm.code(
        f"""
        {take_call("enter", "r15", "rsi", at.CALLS, at.CALL_BYTES)}
        enter_another:
            # the one that had this address has ended
            mov [r15+{at.HEAD_NUMBER}], rax
            mov rsi, [r15+{at.HEAD_TOP}]
        enter_ended:
            test rsi, rsi; jz enter_known
        """,
        calls=facts.table + at.CALLS_AT,
    )
    _drop(asm, facts, "enter_old")
    asm.code("jmp enter_ended\nenter_full:")
    _count(asm, facts, RECORD_MISSED)
    asm.code("jmp enter_done")
    _count_alone(asm, facts, "enter_missed", RECORD_MISSED)


def _leave(asm: Assembler, facts: GoroutineFacts, name: str) -> None:
    """Emit ``leave``: end the call with our stack pointer and record its duration.

    The tail form only counts it, or takes note that it goes on in another function. The caller form ends one that has
    gone on there; most calls of that function are others.
    """
    tail, caller = name == "leave_tail", name == "leave_caller"
    asm.label(name)
    _find_head(asm, facts, name, f"{name}_foreign", f"{name}_foreign" if caller else f"{name}_stranger")
    asm.label(f"{name}_found")
    _begin(asm, facts, clock=not tail)
    asm.code(f"test ecx, {at.JUMPED}; jnz jumps" if tail else "")
    asm.code(f"""
            cmp rax, [r15+{at.HEAD_NUMBER}]; jne {name}_unmatched
            mov rsi, [r15+{at.HEAD_TOP}]
        {name}_top:
            test rsi, rsi; jz {name}_unmatched
            cmp [rsi+{at.CALL_DISTANCE}], r12; ja {name}_left; jb {name}_below
    """)
    # above a call that has jumped here there is none but such; what was left behind there is not known to be
    asm.code(f"cmp dword [rsi+{at.CALL_JUMPED}], 0; je {name}_unmatched" if caller else "")
    asm.code(f"cmp [rsi+{at.CALL_RECORD}], ecx; jne {name}_other")
    asm.code(f"mov qword [rsi+{at.CALL_DISTANCE}], 0")
    asm.code("" if tail else f"sub rdx, [rsi+{at.CALL_START}]")
    if facts.layout.nested:
        _charge(asm, facts, name, tail=tail)
    asm.code(f"""
            cmp [r15+{at.HEAD_TOP}], rsi; jne {name}_taken
        {name}_pop:
            mov rsi, [rsi+{at.CALL_BELOW}]; mov [r15+{at.HEAD_TOP}], rsi
            test rsi, rsi; jz {name}_taken
            cmp qword [rsi+{at.CALL_DISTANCE}], 0; je {name}_pop
        {name}_taken:
    """)
    if tail:
        _count(asm, facts, RECORD_TAIL)
    else:
        _own_record(asm, facts)
        emit_duration(asm, name, "rsi", "lock ")
    _end(asm, name)
    if not tail:
        offset = f"{_own_block(facts, 'rcx')}; mov rcx, rsi; sub rcx, rax"
        emit_extremes(asm, name, "rsi", facts.layout, offset, "lock ")
    # what is above the first open call is not open, so nothing more has been left behind once one is passed by
    asm.code(f"""
        {name}_left:
            mov r12, rdx
    """)
    _drop(asm, facts, f"{name}_drop")
    asm.code(f"""
            mov rdx, r12; mov r12, [r14+{STACK_HIGH}]; sub r12, rsp
            jmp {name}_top
        {name}_below:
            cmp qword [rsi+{at.CALL_DISTANCE}], 0; jne {name}_unmatched
        {name}_other:
            mov rsi, [rsi+{at.CALL_BELOW}]; jmp {name}_top
        {name}_unmatched:
    """)
    if not caller:
        _count(asm, facts, RECORD_UNMATCHED)
    asm.code(f"jmp {name}_done")
    if not caller:
        _count_alone(asm, facts, f"{name}_stranger", RECORD_UNMATCHED)
    asm.code(f"{name}_foreign:\n jmp r13")


def _jump(asm: Assembler, facts: GoroutineFacts) -> None:
    """Emit the rest of ``leave_tail`` where what is jumped to is watched: the call goes on there."""
    asm.code(f"""
        jumps:
            and ecx, -8
            cmp rax, [r15+{at.HEAD_NUMBER}]; jne jumps_unmatched
            mov rsi, [r15+{at.HEAD_TOP}]
    """)
    _seek_equal(asm, "jumps", "jumps_unmatched")
    asm.code(f"""
            mov dword [rsi+{at.CALL_JUMPED}], {at.JUMPED}; jmp leave_tail_done
        jumps_unmatched:
            test byte [r13+{ARGUMENT}], {PASSED_ON}; jnz leave_tail_done
    """)
    _count(asm, facts, RECORD_UNMATCHED)
    asm.code("jmp leave_tail_done")


def _arrive(asm: Assembler, facts: GoroutineFacts) -> None:
    """Emit ``arrive``: a function has been entered, and its call opened, to which the one with the record jumps.

    If a call of that has jumped, it was here; if it has not, or has arrived somewhere before, it was left behind.
    """
    asm.label("arrive")
    _find_head(asm, facts, "arrive", "arrive_foreign", "arrive_foreign")
    asm.label("arrive_found")
    _begin(asm, facts, clock=False)
    asm.code(f"""
            cmp rax, [r15+{at.HEAD_NUMBER}]; jne arrive_done
        arrive_again:
            mov rsi, [r15+{at.HEAD_TOP}]
            test rsi, rsi; jz arrive_done
            cmp [rsi+{at.CALL_DISTANCE}], r12; ja arrive_drop
    """)
    _seek_equal(asm, "arrive", "arrive_done")
    asm.code(f"""
            cmp dword [rsi+{at.CALL_JUMPED}], {at.JUMPED}; jne arrive_left
            mov dword [rsi+{at.CALL_JUMPED}], {at.ARRIVED}; jmp arrive_done
        arrive_left:
            cmp [r15+{at.HEAD_TOP}], rsi; jne arrive_done
    """)
    _drop(asm, facts, "arrive_drop")
    asm.code("jmp arrive_again")
    _end(asm, "arrive")
    asm.code("arrive_foreign:\n jmp r13")


def _seek_equal(asm: Assembler, name: str, nowhere: str) -> None:
    """Emit: rsi = the open call of the function rcx with the distance r12, from rsi on, or go to ``nowhere``."""
    asm.code(f"""
        {name}_top:
            test rsi, rsi; jz {nowhere}
            cmp [rsi+{at.CALL_DISTANCE}], r12; ja {name}_below; jb {name}_over
            cmp [rsi+{at.CALL_RECORD}], ecx; je {name}_equal
            jmp {name}_below
        {name}_over:
            cmp qword [rsi+{at.CALL_DISTANCE}], 0; jne {nowhere}
        {name}_below:
            mov rsi, [rsi+{at.CALL_BELOW}]; jmp {name}_top
        {name}_equal:
    """)


def _own_block(facts: GoroutineFacts, free: str) -> str:
    """Return code: rax = the block where calls of this goroutine are recorded; ``free`` is overwritten."""
    return f"""
        mov rax, r15; shr rax, {at.HEAD_BYTES.bit_length() - 1}; and eax, {at.SHARDS - 1}
        imul rax, rax, {facts.layout.stride}
        mov {free}, {facts.shared}; add rax, {free}
    """


def _own_record(asm: Assembler, facts: GoroutineFacts, into: str = "rsi") -> None:
    """Emit: a register = the record rcx in the block where calls of this goroutine are recorded. rax is overwritten."""
    asm.code(f"{_own_block(facts, into)}; lea {into}, [rax+rcx]")


def _charge(asm: Assembler, facts: GoroutineFacts, name: str, *, tail: bool) -> None:
    """Emit: the call rsi has taken rdx ticks, which its caller is told of; r12 and rax are overwritten.

    A call that left by a jump is not timed: what it has called, its caller has.
    """
    _own_record(asm, facts, "r12")
    if tail:
        _charge_within(asm, name)
        return
    asm.code(f"""
            mov rax, rdx; sub rax, [rsi+{at.CALL_WITHIN}]
            lock add [r12+{RECORD_SELF}], rax
            cmp qword [rsi+{at.CALL_OUTERMOST}], 0; jne {name}_inner
            lock add [r12+{RECORD_OUTERMOST}], rdx
        {name}_inner:
    """)
    _charge_caller(asm, name)
    if facts.layout.nodes:
        emit_in_node(asm, facts.layout)


def _charge_within(asm: Assembler, name: str) -> None:
    """Emit: what the call rsi has called was called by its caller; r12 = its record, rax and rdx are overwritten."""
    asm.code(f"mov rdx, [rsi+{at.CALL_WITHIN}]")
    _charge_caller(asm, name)


def _charge_caller(asm: Assembler, name: str) -> None:
    """Emit: the caller of the call rsi, whose record is r12, has rdx ticks within; rax is overwritten."""
    asm.code(f"""
            mov rax, [rsi+{at.CALL_BELOW}]
            test rax, rax; jz {name}_root
            add [rax+{at.CALL_WITHIN}], rdx
            jmp {name}_charged
        {name}_root:
            lock add [r12+{RECORD_ROOTS}], rdx
        {name}_charged:
    """)
