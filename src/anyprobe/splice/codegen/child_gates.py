"""Generated code that finds a thread's block, also in a fork child that has come to blocks by another code region.

Each code region has a gate of its own, which a fork closes: a call that began in one may end, or be left, by code in
another.
"""

from typing import Protocol

from anyprobe.isa.assemble import Assembler

MAPPED = 31
"""Bit of the note that a fork child has of its blocks: they are there."""


class Gated(Protocol):
    """What is to be known of a bank: its slot, gate and note, as in ``RoutineFacts``."""

    @property
    def slot(self) -> int: ...  # noqa: D102
    @property
    def gate(self) -> int: ...  # noqa: D102
    @property
    def mask(self) -> int: ...  # noqa: D102
    @property
    def adopted(self) -> int: ...  # noqa: D102


def emit_block(asm: Assembler, facts: Gated, name: str) -> None:
    """Emit: rdi = this thread's block, rax = the gate; without a block go to ``closed``, or ``done``."""
    asm.code(
        f"""
        {name}_opened:
            mov rdi, fs:[slot]; mov rax, gate; test [rax], rdi; jz {name}_{"closed" if facts.adopted else "done"}
        """,
        slot=facts.slot,
        gate=facts.gate,
    )


def emit_closed(asm: Assembler, facts: Gated, name: str) -> None:
    """Emit ``closed``: a fork child that has blocks opens this gate, too, and begins anew (rax = the gate)."""
    if facts.adopted:
        asm.code(
            f"""
            {name}_closed:
                cmp qword [rax], 0; jne {name}_done
                mov rax, adopted; mov rax, [rax]
                test rax, rax; js {name}_done
                bt rax, {MAPPED}; jae {name}_done
                mov rdi, mask; mov rax, gate; mov [rax], rdi
                jmp {name}_opened
            """,
            adopted=facts.adopted,
            mask=facts.mask,
            gate=facts.gate,
        )
