"""Generated code that sees how fast a thread is just now, so that what probes cost is known where it is slowed down.

At one entry of 64 a few instructions are timed that are like those of probes. Where they take longer than when the
costs of probes were measured, since another thread runs on the same core or the clock of the processor is lower, so do
probes. The time of the trial itself is known, and left out.
"""

from anyprobe.data import layout as at
from anyprobe.data.costs import INSIDE_AS_TRIALS, UNIT, WHOLE_AS_TRIALS, Costs
from anyprobe.data.layout import START
from anyprobe.isa.assemble import Assembler

_CHANCE = 126
"""Bits of a call's beginning that are 0 where there is a trial; the lowest bit of the clock may always be."""
_ROUNDS, _SMOOTHED = 8, 4
"""Of the trial's loop; and the power of two of trials that the pace is a mean of, more or less."""
_SLOWEST = 3
"""Times what it took at first; what takes longer was interrupted."""
_ANY = 1 << 12
_SHIFT = 16


def emit_chance(asm: Assembler) -> None:
    """Emit: go to the trial now and then (rcx = block, rsi = a new instance); the entry is over otherwise."""
    asm.code(f"""
        enter_filled:
            test byte [rcx+rsi+{START}], {_CHANCE}; jz enter_trial
    """)


def emit_trial(asm: Assembler, costs: Costs) -> None:
    """Emit the trial (rcx = block); rax, rdx and rsi are overwritten."""
    pace, inside = costs.pace, INSIDE_AS_TRIALS * costs.inside
    asm.code(
        f"""
        enter_trial:
            rdtsc; shl rdx, 32; or rax, rdx; push rax
            mov edx, {_ROUNDS}
        enter_again:
            mov rax, [rcx+{at.BLOCK_TOP}]; lea rsi, [rax+rdx]; mov [rsp-8], rsi
            mov rax, [rcx+{at.BLOCK_OWNER}]; xor rsi, rax; add rsi, 3
            mov rax, [rcx+{at.BLOCK_UNWOUND}]; add rax, rsi; mov [rsp-16], rax
            dec edx; jnz enter_again
            rdtsc; shl rdx, 32; or rax, rdx
            pop rsi; sub rax, rsi
            cmp rax, slowest; ja enter_done
            inc qword [rcx+{at.BLOCK_TRIALS}]; add [rcx+{at.BLOCK_TRIED}], rax
            mov rdx, rax; shl rdx, {at.COST_BITS}; add [rcx+{at.BLOCK_COST}], rdx
            shl rax, {at.COST_BITS}; sub rax, pace
            sub rax, [rcx+{at.BLOCK_PACE}]; sar rax, {_SMOOTHED}; add [rcx+{at.BLOCK_PACE}], rax
            mov rax, [rcx+{at.BLOCK_PACE}]
            imul rdx, rax, more_inside; sar rdx, {_SHIFT}; add rdx, entered; mov [rcx+{at.BLOCK_ENTERED}], rdx
            imul rdx, rax, more; sar rdx, {_SHIFT}; add rdx, left; mov [rcx+{at.BLOCK_LEFT}], rdx
            jmp enter_done
        """,
        slowest=_SLOWEST * pace // UNIT or _ANY,
        pace=pace,
        entered=costs.entered,
        left=costs.left,
        more_inside=_per_pace(inside, pace),
        more=_per_pace(WHOLE_AS_TRIALS * costs.whole - inside, pace),
    )


def _per_pace(cost: float, pace: int) -> int:
    """Return what a part of a tick more of the trial means for a cost, shifted."""
    return round(cost * (1 << _SHIFT) / pace) if pace else 0
