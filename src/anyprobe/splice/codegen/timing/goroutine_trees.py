"""The generated code that keeps the call tree of goroutines: a node for each way by which a function was called.

Nodes are those of other trees (``data.layouts.layout``): found by their key, the caller's node and the function's
record, and counted in the block where calls of the goroutine are recorded.
"""

from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.goroutines import CALL_NODE, CALL_WITHIN, HEAD_TOP
from anyprobe.data.layouts.layout import BankLayout
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.timing.goroutine_chains import STACK_HIGH

ARGUMENT = 3
"""Where in the instruction that a patch goes on at the offset of the record is."""


def emit_node(asm: Assembler, layout: BankLayout, keys: int) -> None:
    """Emit, for ``enter``: find or make the node of the call rax of the function rcx; rsi = its caller, 0: none.

    ``keys`` is where the keys of all nodes are. rdx is overwritten, r12 the distance again. Calls by a call without a
    node have none, either.
    """
    asm.code(
        f"""
            mov r12, rax
            mov edx, {at.NO_CALLER}; test rsi, rsi; jz enter_key
            mov rdx, [rsi+{CALL_NODE}]
            test edx, edx; jnz enter_key
            xor ecx, ecx; jmp enter_node
        enter_key:
            shl rcx, {at.NODE_KEY_SHIFT}; or rdx, rcx
            mov rcx, {at.GOLDEN}; imul rcx, rdx; shr rcx, {64 - (layout.nodes.bit_length() - 1)}
            mov qword [r12+{CALL_NODE}], {at.NODE_PROBES}
        enter_probe:
            test ecx, ecx; jz enter_next_node
            mov rsi, keys; lea rsi, [rsi+rcx*8]
            cmp [rsi], rdx; je enter_node
            cmp qword [rsi], 0; jne enter_next_node
            xor eax, eax; lock cmpxchg [rsi], rdx; je enter_node
            cmp rax, rdx; je enter_node
        enter_next_node:
            inc ecx; and ecx, {layout.nodes - 1}
            dec qword [r12+{CALL_NODE}]; jnz enter_probe
            xor ecx, ecx
        enter_node:
            mov [r12+{CALL_NODE}], rcx
            mov rax, r12; mov rsi, [r15+{HEAD_TOP}]
            mov ecx, [r13+{ARGUMENT}]
            mov r12, [r14+{STACK_HIGH}]; sub r12, rsp
        """,
        keys=keys,
    )


def emit_in_node(asm: Assembler, layout: BankLayout) -> None:
    """Emit: the call rsi has taken rdx ticks, r12 = its record rcx in a block; rax is overwritten."""
    tree = layout.tree_offset
    asm.code(f"""
            sub r12, rcx
            mov rcx, [rsi+{CALL_NODE}]; shl rcx, {at.NODE_BYTES.bit_length() - 1}; add rcx, r12
            mov rax, rdx; sub rax, [rsi+{CALL_WITHIN}]
            lock add [rcx+{tree + at.NODE_SELF}], rax
            lock add [rcx+{tree + at.NODE_SUM}], rdx
            lock inc qword [rcx+{tree + at.NODE_COUNT}]
            mov ecx, [r13+{ARGUMENT}]
    """)
