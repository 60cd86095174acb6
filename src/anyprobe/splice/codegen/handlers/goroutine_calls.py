"""The data of calls of Go functions, by goroutine: found, made or given up where a handler asks for ``ctx.data``.

The tables are those of timed calls (``data.layouts.goroutines``), with larger calls: the handler's data is in the same
place of them as in other instances, and so is the word by which a call is known and freed. What is not open on top of a
chain is dropped by the thread that comes by next.
"""

from typing import TYPE_CHECKING

from anyprobe.data.layouts import goroutines as at
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.timing.goroutine_chains import STACK_HIGH, STACK_LOW, seek_head, take_call

if TYPE_CHECKING:
    from anyprobe.splice.codegen.handlers.facts import GoCalls

_SAVED = ("rsi", "r8")


def emit_goroutine_call(asm: Assembler, calls: "GoCalls", *, enters: bool, data: int) -> None:
    """Emit: rdx = the data of the call with the stack pointer rdx, 0 if there is none; clobbers rax, rcx.

    r14 is the goroutine, and there is a stack of anyprobe's. ``enters``: the call begins. ``data``: where in an
    instance its data is.
    """
    meets = "jae call_over; jmp call_above" if enters else "ja call_over; je call_found; jmp instance_end"
    unknown = "head_claim" if enters else "instance_end"
    asm.code("; ".join(f"push {name}" for name in _SAVED))
    asm.code(
        f"""
            mov rcx, [r14+{STACK_HIGH}]; mov rax, rcx
            sub rcx, rdx; sub rax, [r14+{STACK_LOW}]
            xor edx, edx
            cmp rcx, rax; ja instance_end
            {seek_head("head", "rsi", "rax", "r8", unknown=unknown, nowhere="instance_end")}
        head_found:
            mov rax, [r14+number]; bts rax, {at.TAKEN_BIT}
            cmp rax, [rsi+{at.HEAD_NUMBER}]; jne {"head_other" if enters else "instance_end"}
            mov r8, [rsi+{at.HEAD_TOP}]
        call_top:
            test r8, r8; jz {"head_bottom" if enters else "instance_end"}
            mov rax, [r8+{at.CALL_DISTANCE}]
            test rax, rax; jz call_over
            cmp rax, rcx; {meets}
        call_over:
            mov qword [r8+{at.CALL_DISTANCE}], 0
            mov r8, [r8+{at.CALL_BELOW}]; mov [rsi+{at.HEAD_TOP}], r8
            jmp call_top
        """,
        heads=calls.table,
        number=calls.number_at,
    )
    if enters:
        _emit_open(asm, calls, data)
    else:
        asm.code(f"call_found:\n lea rdx, [r8+{data}]")
    asm.label("instance_end")
    asm.code("; ".join(f"pop {name}" for name in reversed(_SAVED)))


def _emit_open(asm: Assembler, calls: "GoCalls", data: int) -> None:
    """Emit: rdx = the data of a new call above r8, with the distance rcx, of the head rsi."""
    cleared = "; ".join(f"mov qword [rax+{place}], 0" for place in range(data, at.INSTANCE_BYTES, 8))
    asm.code(
        f"""
        call_above:
            mov rax, [r8+{at.CALL_ABOVE}]
            test rax, rax; jz head_more
        head_call:
            {cleared}
            mov [rsi+{at.HEAD_TOP}], rax
            mov [rax+{at.CALL_DISTANCE}], rcx
            lea rdx, [rax+{data}]
            jmp instance_end
        {take_call("head", "rsi", "r8", at.INSTANCES, at.INSTANCE_BYTES)}
        head_full:
            xor edx, edx; jmp instance_end
        head_other:
            # the goroutine that had this address has ended, and its calls with it
            mov [rsi+{at.HEAD_NUMBER}], rax
            mov r8, [rsi+{at.HEAD_TOP}]
        head_ended:
            test r8, r8; jz head_emptied
            mov qword [r8+{at.CALL_DISTANCE}], 0
            mov r8, [r8+{at.CALL_BELOW}]
            jmp head_ended
        head_emptied:
            mov [rsi+{at.HEAD_TOP}], r8
            jmp head_bottom
        """,
        calls=calls.table + at.CALLS_AT,
    )
