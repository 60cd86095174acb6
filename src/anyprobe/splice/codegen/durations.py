"""The generated code that adds a duration to a timing record, which threads or goroutines have in different ways."""

from anyprobe.data.histogram import BUCKETS
from anyprobe.data.layout import RECORD_BUCKETS, RECORD_MAX, RECORD_NOT_MIN, RECORD_SUM
from anyprobe.isa.assemble import Assembler


def emit_duration(asm: Assembler, name: str, record: str, lock: str = "") -> None:
    """Emit: rdx ticks are added to the record that a register holds; rax, rcx and rdx are overwritten.

    What probes cost is known on average, and processors' counters may differ: a short call may have less than no time.
    In the sum it counts as it is, else as 0. ``lock``: ``"lock "`` where others write the same record, before what is
    written.
    """
    asm.code(f"""
        {lock}add [{record}+{RECORD_SUM}], rdx
        test rdx, rdx; js {name}_below_zero
    {name}_not_below:
        cmp rdx, [{record}+{RECORD_MAX}]; ja {name}_newmax
    {name}_maxdone:
        mov rcx, rdx; not rcx
        cmp rcx, [{record}+{RECORD_NOT_MIN}]; ja {name}_newmin
    {name}_mindone:
        # log-linear bucket: 64 per power of two; exact below 128
        mov rax, rdx; or rax, 64
        bsr rcx, rax; sub ecx, 6
        shr rdx, cl; shl ecx, 6; add rdx, rcx
        mov eax, {BUCKETS - 1}
        cmp rdx, rax; cmova rdx, rax
        {lock}inc qword [{record}+rdx*8+{RECORD_BUCKETS}]
    """)


def emit_extremes(asm: Assembler, name: str, record: str, lock: str = "") -> None:
    """Emit the rare paths of ``emit_duration``: a new maximum or minimum, safe against handlers on the same thread."""
    asm.code(f"""
    {name}_below_zero:
        xor edx, edx; jmp {name}_not_below
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
    """)
