"""The generated routines that end calls: at a return, at a jump to another function, and where the caller goes on.

They are a part of ``routines``, which says how they are called and what they keep. A function that ends in a jump to
another one is over when that returns: to the address that the call has left on the stack, its *return point*. Which of
these are watched is said by a table that anyprobe writes. Each entry is a pair of a return point and the offset of a
timing record, and a state. Pairs that are not there are noted, once each, in another table that the threads write.
"""

from functools import partial
from typing import TYPE_CHECKING

from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.layout import COST, RECORD, SP, START, TOMBSTONE, UNWOUND
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen import child_gates
from anyprobe.splice.codegen.stacks import same_stack
from anyprobe.splice.codegen.timing import clocks, left_calls, nested_calls, slow_paths
from anyprobe.splice.codegen.timing.durations import emit_duration, emit_extremes
from anyprobe.splice.codegen.timing.leftovers import emit_shrink

if TYPE_CHECKING:
    from anyprobe.splice.codegen.routines import RoutineFacts


_IN_THIS_TEXT = f"""cmp eax, {at.CALLER_REFUSED}; je {{name}}_unknown
            jb {{name}}_noted
            mov r8, change; cmp eax, [r8]; jbe {{name}}_looked"""
"""A fork child may have been made before its parent's text was changed."""
_OF_A_CHILD = """call acquire
            test rcx, rcx; jz {name}_done
            jmp {name}_opened
        {name}_blockless:"""
"""A fork child returns from a call that its parent has begun, or that it has begun itself by code of another region."""


def emit_leave(asm: Assembler, facts: "RoutineFacts", name: str) -> None:
    """Emit ``leave``: take the instance with our stack pointer and record its duration.

    The tail form leaves the instance to the return point where the call ends, if that is watched; else it takes it and
    only counts the exit. The caller form is for return points: see ``_leave_caller``. Argument: offset of the timing
    record. The copies by which the signal view finishes what was begun are entered in the middle; they return with the
    registers as they are, and have nothing on the stack.
    """
    if name.endswith("caller"):
        _leave_caller(asm, facts, name)
        return
    if name.endswith("switch"):
        _leave_switch(asm, facts, name)
        return
    tail, nested = name.endswith("tail"), facts.layout.nested
    more = " push r8; push r9; push r11" if nested else ""
    pushed = 24 if nested else 0
    asm.code(f"""
    {name}:
        push rax; lahf; seto al; push rax
        push rcx; push rdx; push rsi; push rdi;{more}
    {name}_opened:
    """)
    asm.code(
        f"mov rdi, fs:[slot]; mov rax, gate; test [rax], rdi; jz {name}_stranger", slot=facts.slot, gate=facts.gate
    )
    tries = not tail and not facts.clock
    if not tail:
        clocks.emit_read(asm, facts, name)
    if tail:
        _look_up_caller(asm, facts, name, pushed)
    asm.code(f"""
        {f"mov [rdi+{at.BLOCK_ENDED}], rdx" if tries else ""}
        lea rax, [rsp+{0xC0 + pushed}]
        mov rcx, [rsp+{0x38 + pushed}]
        mov rsi, [rdi+{at.BLOCK_TOP}]
        sub rsi, 1; js {name}_unmatched
        shl rsi, 6
    """)
    if nested:
        _take_top_nested(asm, name, facts)
    else:
        _take_top(asm, name, facts)
    asm.label(name + "_found")
    if tail:
        asm.code(
            f"add qword [rdi+{at.BLOCK_COST}], jumped; add rdi, rcx; inc qword [rdi+rdx]",
            jumped=facts.costs.jumped,
        )
    else:
        asm.code(f"mov rsi, rdi; add rdi, rcx; inc qword [rdi+{at.RECORD_COUNT}]")
        emit_duration(asm, name, "rdi")
    if tries:
        clocks.emit_chance(asm, name)
    asm.label(name + "_done")
    back = "pop r11; pop r9; pop r8; " if nested else ""
    rest = "pop rdi; pop rsi; pop rdx; pop rcx; pop rax; add al, 0x7f; sahf; pop rax; ret"
    _give_back(asm, name, back + rest, 15 if nested else 9)
    _leave_search(asm, name, facts)
    if tries:
        clocks.emit_trial(asm, facts.costs, name, on_processors=facts.layout.on_processors)
    if not tail:
        clocks.emit_waits(asm, facts, name)
    if not tail:
        emit_extremes(asm, name, "rdi", facts.layout, "mov rcx, rdi; sub rcx, rsi")
    if nested:
        # nothing is done yet where these are reached, unlike above
        asm.code(f"""
        {name}_leaving:
            cmp dword [rdi+{at.BLOCK_PURGING}], 0; jne {name}_certain
            sub rax, [rdi+{at.BLOCK_LEAVING}]
            {same_stack("rax", f"[rdi+{at.BLOCK_LEAVING}]", "r8", name + "_certain")}
            jnz {name}_certain
        """)
        left_calls.emit_settled(asm, name + "_top", f"mov r11, [rdi+rsi+{SP}]; dec r11")
        if not tail:  # r9 was overwritten
            asm.code(f"mov r9, [rdi+{at.BLOCK_COST}]; add r9, ended; sub r9, [rdi+rsi+{COST}]", **_values(facts))
        asm.code(f"jmp {name}_certain")
    asm.code(
        f"""
        {name}_unmatched:
            add qword [rdi+{at.BLOCK_COST}], ended; inc qword [rdi+rcx+{at.RECORD_UNMATCHED}]
        {name}_unmatched_done:
            jmp {name}_done
        {name}_stranger:
            cmp qword [rax], 0; {"jne" if facts.adopted else "je"} {name}_{"blockless" if facts.adopted else "done"}
            {_OF_A_CHILD.format(name=name) if facts.adopted else ""}
            # a thread without a block entered before us
            mov rcx, [rsp+{0x38 + pushed}]
            mov rdi, shared
            lock inc qword [rdi+rcx+{at.RECORD_UNMATCHED}]
        {name}_stranger_done:
            jmp {name}_done
        """,
        shared=facts.shared,
        ended=facts.costs.jumped if tail else facts.costs.left,
    )
    if tail:
        asm.code(
            f"""
        {name}_jumped:
            inc qword [rdi+rcx+{at.RECORD_JUMPED}]  # first: there is never less than that
            add qword [rdi+{at.BLOCK_COST}], jumped
            mov rax, [rdi+{at.BLOCK_UNWOUND}]; mov [rdi+rsi+{UNWOUND}], rax
            or qword [rdi+rsi+{RECORD}], {at.JUMPED}
        {name}_jumped_done:
            jmp {name}_done
        """,
            jumped=facts.costs.jumped,
        )


def _leave_caller(asm: Assembler, facts: "RoutineFacts", name: str) -> None:
    """Emit ``leave_caller``: end the calls that left by jumps and come back at a return point.

    The functions were entered with the stack pointer one word below. Where nothing is found it was another call that
    has come back. There may be several: functions that jump to each other, and what exceptions have left behind. A
    call is timed unless something may have left it behind since it jumped away, and the first one in any case where
    nothing else is called. Nothing is looked for where no open call of the function has jumped. Argument: offset of
    the timing record, and ``JUMPED``, ``CERTAIN``, ``UNSEEN``.
    """
    nested, costs = facts.layout.nested, facts.costs
    pushed = 8 if nested else 0
    asm.code(f"""
    {name}:
        push rax; lahf; seto al; push rax
        push rcx; push rdx; push rsi; push rdi
        push r8; push r9; push r11;{" push r10" if nested else ""}
    """)
    child_gates.emit_block(asm, facts, name)
    asm.code(
        f"""
            lea r11, [rsp+{0xD0 + pushed}]; mov r9, [rsp+{0x50 + pushed}]
            mov ecx, r9d; and ecx, -8
            cmp qword [rdi+rcx+{at.RECORD_JUMPED}], 0; je {name}_none
            mov rsi, [rdi+{at.BLOCK_TOP}]
            sub rsi, 1; js {name}_none
            shl rsi, 6
        {name}_search:
            cmp [rdi+rsi+{SP}], r11; jne {name}_below
            lea rax, [rcx+{at.JUMPED}]
            cmp [rdi+rsi+{RECORD}], rax; je {name}_hit
        {name}_below:
            sub rsi, 64; jns {name}_search
        {name}_none:
            add qword [rdi+{at.BLOCK_COST}], passed; jmp {name}_done
        {name}_hit:
        """,
        passed=costs.passed,
    )
    timed, asks = slow_paths.are_timed(facts.costs, facts.clock), facts.layout.on_processors
    if nested:
        asm.code(f"cmp qword [rdi+{at.BLOCK_LEAVING}], 0; jne {name}_left")
        asm.label(name + "_going_on")
    clocks.emit_read(asm, facts, name)
    if timed:
        asm.code(f"lea rax, [rdx+rest]; mov [rdi+{at.BLOCK_SLOW}], rax", rest=costs.came_back >> at.COST_BITS)
    asm.code(
        f"""
            mov rax, [rdi+{at.BLOCK_COST}]; add rax, came; sar rax, {at.COST_BITS}; sub rdx, rax
            add qword [rdi+{at.BLOCK_COST}], came_back
            mov r8, rdx; sub rdx, [rdi+rsi+{START}]
            mov rax, [rdi+rsi+{UNWOUND}]
            mov qword [rdi+rsi+{SP}], {TOMBSTONE}
        {name}_removed:
            dec qword [rdi+rcx+{at.RECORD_JUMPED}]
            btr r9d, {at.CERTAIN.bit_length() - 1}; jb {name}_timed
            test r9d, {at.UNSEEN}; jnz {name}_missed
            cmp rax, [rdi+{at.BLOCK_UNWOUND}]; jne {name}_missed
        {name}_timed:
            mov rax, [rdi+{at.BLOCK_COST}]; add rax, rest
            sub rax, [rdi+rsi+{COST}]; add [rdi+rcx+{at.RECORD_COST}], rax
        """,
        came=costs.came,
        came_back=costs.came_back,
        rest=costs.came - costs.came_back,
    )
    if nested:
        nested_calls.emit_split(asm, name, "r8", ("rax", "r10", "rcx"), facts.layout)
        asm.code("mov ecx, r9d; and ecx, -8")
        nested_calls.emit_handed_over(asm, name, ("rax", "r10"), timed=True)
        nested_calls.emit_charged(asm, name, ("rax", "r10"), _tree(facts))
    asm.code(f"add rdi, rcx; inc qword [rdi+{at.RECORD_COUNT}]")
    emit_duration(asm, name, "rdi")
    asm.code(
        f"""
            mov rdi, fs:[slot]; mov ecx, r9d; and ecx, -8
        {name}_next:
        """,
        slot=facts.slot,
    )
    if nested:  # what is above is looked through for each of them
        emit_shrink(asm, name + "_ended", "next", "rdx")
        asm.label(name + "_ended_next")
        asm.code("add rdx, 64; cmp rsi, rdx; cmova rsi, rdx")
    asm.code(
        f"""
        {name}_further:
            sub rsi, 64; js {name}_shrink
            cmp qword [rdi+rsi+{SP}], {TOMBSTONE}; je {name}_further
            cmp [rdi+rsi+{SP}], r11; jne {name}_shrink
            lea rax, [rcx+{at.JUMPED}]
            cmp [rdi+rsi+{RECORD}], rax; jne {name}_further
            jmp {name}_another
        {name}_another:
            {f"{slow_paths.over('rdi', asks=asks)}; {slow_paths.begun('rdi', asks=asks)}" if timed else ""}
            mov rdx, r8; sub rdx, [rdi+rsi+{START}]
            mov rax, [rdi+rsi+{UNWOUND}]
            mov qword [rdi+rsi+{SP}], {TOMBSTONE}
            jmp {name}_removed
        {name}_missed:
        """
    )
    if nested:
        nested_calls.emit_split(asm, name + "_missed", None, ("rax", "rdx", "r10"), facts.layout)
        nested_calls.emit_handed_over(asm, name + "_missed", ("rax", "r10"), timed=False)
        nested_calls.emit_untimed(asm, name, ("rax", "r10"), facts.layout)
    asm.code(f"inc qword [rdi+rcx+{at.RECORD_MISSED}]; jmp {name}_next")
    asm.label(name + "_done")
    restored = "pop r11; pop r9; pop r8; pop rdi; pop rsi; pop rdx; pop rcx; pop rax; add al, 0x7f; sahf; pop rax; ret"
    _give_back(asm, name, ("pop r10; " if nested else "") + restored, 17 if nested else 15)
    emit_shrink(asm, name, "done")
    if nested:
        nested_calls.emit_rare(asm, name, "r10", "add r10, less", facts.layout, less=costs.came - costs.came_back)
        asm.label(name + "_left")
        left_calls.emit_settled(asm, name, "mov r10, r9; dec r11", "inc r11; mov r9, r10")
        asm.code(f"jmp {name}_going_on")
    emit_extremes(asm, name, "rdi", facts.layout, "mov ecx, r9d; and ecx, -8")
    child_gates.emit_closed(asm, facts, name)
    clocks.emit_waits(asm, facts, name)


def _leave_switch(asm: Assembler, facts: "RoutineFacts", name: str) -> None:
    """Emit ``leave_switch``: see ``switches``."""
    from anyprobe.splice.codegen.timing.switches import RESTORED, RESTORED_BYTES, SAVED, Around, emit_arrival

    around = Around(
        partial(clocks.emit_read, asm, facts, name),
        partial(_give_back, asm, name, RESTORED, RESTORED_BYTES - 1),
        facts.costs.ended,
        slow_paths.are_timed(facts.costs, facts.clock),
    )
    asm.code(f"{name}:\n {SAVED}")
    child_gates.emit_block(asm, facts, name)
    emit_arrival(asm, facts.layout, name, around)
    child_gates.emit_closed(asm, facts, name)
    clocks.emit_waits(asm, facts, name)


def _give_back(asm: Assembler, name: str, text: str, padding: int) -> None:
    """Emit the end of a routine; its copy only returns."""
    asm.code("ret" + "; int3" * padding if name.startswith("finish") else text)


def _measured(facts: "RoutineFacts") -> str:
    """Return code: rdx = the thread's own time, without what probes have taken, from rdx = the time.

    What they have cost in the call goes into r9 where calls are nested, else into rax. Nothing is done yet.
    """
    whole, cost = ("r8", "r9") if facts.layout.nested else ("rax", "rcx")
    return f"""mov {whole}, [rdi+{at.BLOCK_COST}]; add {whole}, ended
        mov {cost}, {whole}; sub {cost}, [rdi+rsi+{COST}]
        sar {whole}, {at.COST_BITS}; sub rdx, {whole}
        {"" if facts.layout.nested else f"mov rax, rcx; mov rcx, [rdi+rsi+{RECORD}]"}"""


def _settle_costs(facts: "RoutineFacts") -> str:
    """Return code: the function's record, and the thread's block, are told what its probes have cost."""
    free = "r9" if facts.layout.nested else "rax"
    return f"""add [rdi+rcx+{at.RECORD_COST}], {free}
        mov {free}, [rdi+{at.BLOCK_LEFT}]; add [rdi+{at.BLOCK_COST}], {free}"""


def _values(facts: "RoutineFacts") -> dict[str, int]:
    return {"ended": facts.costs.ended}


def _tree(facts: "RoutineFacts") -> int:
    return facts.layout.nodes and facts.layout.tree_offset


def _take_top(asm: Assembler, name: str, facts: "RoutineFacts") -> None:
    """Emit: take the instance on the top, if it is the one that ends (rax = stack pointer, rcx = record)."""
    tail = name.endswith("tail")
    measured = f"{_measured(facts)}; sub rdx, [rdi+rsi+{START}]"
    asm.code(
        f"""
        cmp [rdi+rsi+{SP}], rax; jne {name}_search
        cmp [rdi+rsi+{RECORD}], rcx; jne {name}_search
        {f"test edx, edx; jz {name}_jumped" if tail else measured}
        mov qword [rdi+rsi+{SP}], 0
    {name}_taken:
        dec qword [rdi+{at.BLOCK_TOP}]
        {"" if tail else _settle_costs(facts)}
    """,
        **_values(facts),
    )


def _take_top_nested(asm: Assembler, name: str, facts: "RoutineFacts") -> None:
    """Emit the same where calls are nested; with nothing above it, all that was left behind on its stack is known."""
    tail = name.endswith("tail")
    measured = f"{_measured(facts)}; sub rdx, [rdi+rsi+{START}]"
    asm.code(
        f"""
            cmp [rdi+rsi+{SP}], rax; jne {name}_search
            cmp [rdi+rsi+{RECORD}], rcx; jne {name}_search
            {f"test edx, edx; jz {name}_jumped" if tail else measured}
            cmp qword [rdi+{at.BLOCK_LEAVING}], 0; jne {name}_leaving
        {name}_certain:
            mov qword [rdi+rsi+{SP}], {TOMBSTONE}
        {name}_taken:
            {"" if tail else _settle_costs(facts)}
    """,
        **_values(facts),
    )
    if tail:
        nested_calls.emit_untimed(asm, name, ("rax", "r8"), facts.layout)
    else:
        nested_calls.emit_charged(asm, name, ("rax", "r8"), _tree(facts))
    asm.code(f"mov qword [rdi+rsi+{SP}], 0; dec qword [rdi+{at.BLOCK_TOP}]")


def _look_up_caller(asm: Assembler, facts: "RoutineFacts", name: str, pushed: int = 0) -> None:
    """Emit: edx = 0 if the return point on the stack is watched, else the field of the record that counts the exit.

    A return point that is not known is noted. Pairs are noted once, so a thread that is interrupted can begin
    anew. ``rdi`` is the block before and after.
    """
    if not facts.layout.callers:
        asm.code(f"mov edx, {at.RECORD_TAIL}")
        return
    asm.code(f"push r8; mov rsi, [rsp+{0xC8 + pushed}]; mov rcx, [rsp+{0x40 + pushed}]")
    emit_look_up(asm, facts, name, at.RECORD_LEARNING, at.RECORD_TAIL)
    asm.code("pop r8; mov rdi, fs:[slot]", slot=facts.slot)


def emit_look_up(asm: Assembler, facts: "RoutineFacts", name: str, learning: int, unseen: int) -> None:
    """Emit: edx = 0 if a return point is watched, ``learning`` if it is not known yet, ``unseen`` if it cannot be.

    ``rsi`` is the return point and ``rcx`` the offset of a record; both stay. Clobbers rax, rdi, r8.
    """
    layout = facts.layout
    asm.code(f"test rsi, rsi; jz {name}_unknown")
    _hash(asm, facts.data + layout.known_callers_offset, layout.known_callers)
    asm.code(
        f"""
        {name}_seek:
            mov rax, [rdi+rdx]; cmp rax, rsi; jne {name}_other
            cmp [rdi+rdx+{at.CALLER_RECORD}], ecx; je {name}_known
        {name}_other:
            test rax, rax; jz {name}_strange
            add edx, {at.CALLER_BYTES}; and edx, last
            dec r8d; jnz {name}_seek
        {name}_strange:
        """,
        last=(layout.known_callers - 1) * at.CALLER_BYTES,
    )
    _hash(asm, facts.data + layout.callers_offset, layout.callers)
    asm.code(
        f"""
        {name}_probe:
            mov rax, [rdi+rdx]; cmp rax, rsi; je {name}_same
            test rax, rax; jnz {name}_next
            lock cmpxchg [rdi+rdx], rsi; je {name}_same
            cmp rax, rsi; jne {name}_next
        {name}_same:
            mov eax, [rdi+rdx+{at.CALLER_RECORD}]; cmp eax, ecx; je {name}_noted
            test eax, eax; jnz {name}_next
            lock cmpxchg [rdi+rdx+{at.CALLER_RECORD}], ecx; je {name}_noted
            cmp eax, ecx; je {name}_noted
        {name}_next:
            add edx, {at.CALLER_BYTES}; and edx, last
            dec r8d; jnz {name}_probe
        {name}_unknown:
            mov edx, {unseen}; jmp {name}_looked
        {name}_known:
            mov eax, [rdi+rdx+{at.CALLER_STATE}]
            xor edx, edx
            cmp eax, {at.CALLER_WATCHED}; je {name}_looked
            {_IN_THIS_TEXT.format(name=name) if facts.change else f"ja {name}_unknown"}
        {name}_noted:
            mov edx, {learning}
        {name}_looked:
        """,
        last=(layout.callers - 1) * at.CALLER_BYTES,
        change=facts.change,
    )


def _hash(asm: Assembler, table: int, entries: int) -> None:
    """Emit: rdi = a table of return points, edx = where the pair of rsi and rcx is looked for first, r8d = how often.

    The same as ``data.layouts.callers.first_entry``.
    """
    asm.code(
        f"""
            mov rdx, rcx; shl rdx, 32; xor rdx, rsi
            mov rax, {at.GOLDEN}; imul rdx, rax
            shr rdx, {64 - (entries.bit_length() - 1)}; shl edx, 4
            mov rdi, table; mov r8d, {min(at.CALLER_PROBES, entries)}
        """,
        table=table,
    )


def _leave_search(asm: Assembler, name: str, facts: "RoutineFacts") -> None:
    """Emit: look below the top for the instance (rax = stack pointer, rcx = record), then drop tombstones."""
    tail, nested = name.endswith("tail"), facts.layout.nested
    taken = f"test edx, edx; jz {name}_jumped" if tail else ""
    if not tail and not nested:
        taken = f"{_measured(facts)}; sub rdx, [rdi+rsi+{START}]"
    timed, asks = slow_paths.are_timed(facts.costs, facts.clock), facts.layout.on_processors
    begun = lost = found = charged = ""
    if timed and tail:
        begun = slow_paths.keeping("rdi", slow_paths.begun("rdi", asks=asks))
        lost = slow_paths.over("rdi", asks=asks)
        found = slow_paths.keeping("rdi", lost)
    elif timed:  # rdx is when the call has ended
        lost = f"mov rsi, rdx; {slow_paths.over('rdi', 'rsi', asks=asks)}"
        found = slow_paths.keeping("rdi", slow_paths.taken("rdi", asks=asks))
        charged = slow_paths.charged("rdi", "r9" if nested else "rax")
    asm.label(name + "_search")
    if timed and tail and facts.dark:  # nothing else of a tail exit reads the clock
        asm.code(f"mov rsi, dark; cmp dword [rsi], 0; jne {name}_done", dark=facts.dark)
        asm.code(f"mov rsi, [rdi+{at.BLOCK_TOP}]; dec rsi; shl rsi, 6")
    asm.code(
        f"""
        {begun}
    {name}_sought:
        cmp [rdi+rsi+{SP}], rax; jne {name}_below
        cmp [rdi+rsi+{RECORD}], rcx; je {name}_hit
    {name}_below:
        sub rsi, 64; jns {name}_sought
        {lost}
        jmp {name}_unmatched
    {name}_hit:
        {found}
        {taken}
        mov qword [rdi+rsi+{SP}], {TOMBSTONE}
    {name}_removed:
        {"" if tail or nested else f"{_settle_costs(facts)}; {charged}"}
    """,
        **_values(facts),
    )
    if nested:
        left_calls.emit_settled(asm, name, "lea r11, [rax-1]")
        if not tail:  # what was left behind has had its cost, too
            asm.code(f"{_measured(facts)}; {_settle_costs(facts)}; {charged}", **_values(facts))
        nested_calls.emit_split(asm, name, None if tail else "rdx", ("r11", "r8", "r9"), facts.layout)
        nested_calls.emit_handed_over(asm, name, ("r11", "r8"), timed=not tail)
        if tail:
            nested_calls.emit_untimed(asm, name + "_below", ("rax", "r8"), facts.layout)
        else:
            asm.code(f"sub rdx, [rdi+rsi+{START}]")
            nested_calls.emit_charged(asm, name + "_below", ("rax", "r8"), _tree(facts))
    emit_shrink(asm, name, "found")
    if nested and not tail:
        rest = f"sub r8, [rdi+{at.BLOCK_LEFT}]; add r8, ended"
        nested_calls.emit_rare(asm, name, "r8", rest, facts.layout, **_values(facts))
        nested_calls.emit_rare(asm, name + "_below", "r8", rest, facts.layout, **_values(facts))
