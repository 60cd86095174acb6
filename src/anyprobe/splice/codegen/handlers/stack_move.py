"""The end of a handler's call that gives the thread another stack pointer: by ``iretq``, which sets all at once.

A return would need its address on the new stack, and memory there that is not needed. ``iretq`` takes everything from
the old one, where no register has to be free for it. Its frame of five words ends with the return address's place:

    [frame] rip    [+8] cs    [+16] flags    [+24] rsp    [+32] ss, which was the return address
"""

from anyprobe.isa.assemble import Assembler

ROOM_BYTES = 32
"""Below the return address."""
ROOM = f"lea rsp, [rsp-{ROOM_BYTES}]"
STACK_POINTER = -8
"""Where the new stack pointer is put, from the return address on."""
RETURN = f"lea rsp, [rsp+{ROOM_BYTES}]; ret"
"""The end of a call in which no handler has run."""
LEAVE = "pushfq; pop qword [rsp+16]; iretq"
_CODE_SEGMENT, _STACK_SEGMENT = 0x33, 0x2B


def emit_frame(asm: Assembler, base: str, at: int, still_popped: int) -> None:
    """Emit: the frame is complete; rax may be overwritten.

    The return address is ``at`` bytes from the register ``base``; who is returned to drops ``still_popped`` bytes.
    """
    asm.code(
        f"""
            mov rax, [{base}+back]; mov [{base}+back-{ROOM_BYTES}], rax
            mov qword [{base}+back-{ROOM_BYTES - 8}], {_CODE_SEGMENT}
            mov qword [{base}+back], {_STACK_SEGMENT}
        """,
        back=at,
    )
    if still_popped:
        asm.code(f"sub qword [{base}+place], popped", place=at + STACK_POINTER, popped=still_popped)
