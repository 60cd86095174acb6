"""The generated code that adds a duration to a timing record, which threads or goroutines have in different ways."""

from anyprobe.data.layouts.histogram import BUCKETS
from anyprobe.data.layouts.layout import (
    FAR_TIMES,
    NEAR_BUCKETS,
    RECORD_BUCKETS,
    RECORD_MAX,
    RECORD_NOT_MIN,
    RECORD_SUM,
    BankLayout,
)
from anyprobe.isa.assemble import Assembler


def emit_duration(asm: Assembler, name: str, record: str, lock: str = "") -> None:
    """Emit: rdx ticks are added to the record that a register holds; rax, rcx and rdx are overwritten.

    What probes cost is known on average, and processors' counters may differ: a short call may have less than no time.
    In the sum it counts as it is, else as 0. ``lock``: ``"lock "`` where others write the same record, before what is
    written. A call is counted in its bucket by one instruction, whichever of its two words that is: their sum is right
    whenever the thread is interrupted, killed, or looked at.
    """
    asm.code(f"""
        {lock}add [{record}+{RECORD_SUM}], rdx
        xor eax, eax; test rdx, rdx; cmovs rdx, rax  # no jump: of short calls it could not be predicted
        cmp rdx, [{record}+{RECORD_MAX}]; ja {name}_newmax
    {name}_maxdone:
        mov rcx, rdx; not rcx
        cmp rcx, [{record}+{RECORD_NOT_MIN}]; ja {name}_newmin
    {name}_mindone:
        # log-linear bucket: 64 per power of two; exact below 128
        mov rax, rdx; or rax, 64
        bsr rcx, rax; sub ecx, 6
        shr rdx, cl; shl ecx, 6; add rdx, rcx
        cmp rdx, {NEAR_BUCKETS}; jae {name}_far
        cmp dword [{record}+rdx*4+{RECORD_BUCKETS}], 0; jl {name}_far  # full: 2**31 calls
        {lock}inc dword [{record}+rdx*4+{RECORD_BUCKETS}]
    {name}_counted:
    """)


def emit_extremes(asm: Assembler, name: str, record: str, layout: BankLayout, offset: str, lock: str = "") -> None:
    """Emit the rare paths of ``emit_duration``: a new maximum or minimum, safe against handlers on the same thread.

    And a bucket that is far from the record. ``offset``: code that has rcx = the record's offset in its block, by
    registers that are as they were; rax is overwritten.
    """
    asm.code(
        f"""
    {name}_newmax:
        mov rax, [{record}+{RECORD_MAX}]
        cmp rax, rdx; jae {name}_maxdone
        {lock}cmpxchg [{record}+{RECORD_MAX}], rdx; jne {name}_newmax
        jmp {name}_maxdone
    {name}_newmin:
        mov rax, [{record}+{RECORD_NOT_MIN}]
        cmp rax, rcx; jae {name}_mindone
        {lock}cmpxchg [{record}+{RECORD_NOT_MIN}], rcx; jne {name}_newmin
        jmp {name}_mindone
    {name}_far:
        mov eax, {BUCKETS - 1}
        cmp rdx, rax; cmova rdx, rax
        {offset}
        sub rcx, records; imul rcx, rcx, {FAR_TIMES - 1}; add rcx, {record}
        {lock}inc qword [rcx+rdx*8+far]
        jmp {name}_counted
        """,
        records=layout.records_offset,
        far=layout.far_offset - layout.records_offset,
    )
