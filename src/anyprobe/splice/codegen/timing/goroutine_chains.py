"""The generated code that finds a goroutine's head and takes calls for its chain (``data.layouts.goroutines``)."""

from anyprobe.data.layouts import goroutines as at

STACK_LOW, STACK_HIGH = 0, 8
"""Where ``runtime.g`` has the bounds of the stack."""


def seek_head(prefix: str, head: str, scratch: str, left: str, *, unknown: str, nowhere: str) -> str:
    """Return code that has a register be the head of the goroutine r14, and goes on at ``PREFIX_found`` then.

    ``unknown``: where it goes at the first free head, with what is ``left`` of the search, which goes on at
    ``PREFIX_next``. ``nowhere``: where it goes after the last head. ``scratch`` and ``left`` may be one register. The
    name ``heads`` is the address of the first head.
    """
    hashed_bits = at.HEADS.bit_length() - 1 - at.PLACE_BITS
    low, other, count = (f"{name}d" if name[1:].isdigit() else f"e{name[1:]}" for name in (head, scratch, left))
    return f"""
        mov {head}, r14; shr {head}, {at.SPAN_SHIFT}
        imul {low}, {low}, {at.GOLDEN_32}; shr {low}, {32 - hashed_bits}; shl {low}, {at.PLACE_BITS}
        mov {scratch}, r14; shr {scratch}, {at.PLACE_SHIFT}; and {other}, {(1 << at.PLACE_BITS) - 1}
        or {low}, {other}; shl {head}, {at.HEAD_BYTES.bit_length() - 1}
        mov {scratch}, heads; add {head}, {scratch}
        mov {count}, {at.HEAD_PROBES}
    {prefix}_seek:
        cmp [{head}+{at.HEAD_GOROUTINE}], r14; je {prefix}_found
        cmp qword [{head}+{at.HEAD_NUMBER}], 0; je {unknown}
    {prefix}_next:
        add {head}, {at.HEAD_BYTES}
        dec {count}; jnz {prefix}_seek
        jmp {nowhere}
    """


def take_call(prefix: str, head: str, below: str, most: int, size: int) -> str:
    """Return code that has rax be another call, above ``below`` if that is not 0, and goes on at ``PREFIX_call`` then.

    It begins at ``PREFIX_bottom`` where ``below`` is 0 and the chain may have a call, at ``PREFIX_more`` where it has
    none; it goes to ``PREFIX_full`` after the last of ``most`` calls of ``size`` bytes. rdx is overwritten. At
    ``PREFIX_claim`` a free head becomes that of r14. The name ``calls`` is the address of the calls.
    """
    return f"""
    {prefix}_bottom:
        mov rax, [{head}+{at.HEAD_FIRST}]
        test rax, rax; jnz {prefix}_call
    {prefix}_more:
        mov rax, calls; mov edx, 1
        lock xadd [rax+{at.CALLS_TAKEN}], rdx
        cmp rdx, {most}; jae {prefix}_full
        inc rdx; shl rdx, {size.bit_length() - 1}; add rax, rdx
        test {below}, {below}; jz {prefix}_first
        mov [rax+{at.CALL_BELOW}], {below}; mov [{below}+{at.CALL_ABOVE}], rax
        jmp {prefix}_call
    {prefix}_first:
        mov [{head}+{at.HEAD_FIRST}], rax
        jmp {prefix}_call
    {prefix}_claim:
        lock bts qword [{head}+{at.HEAD_NUMBER}], {at.TAKEN_BIT}; jb {prefix}_next
        mov [{head}+{at.HEAD_GOROUTINE}], r14
        jmp {prefix}_found
    """
