"""Generated code that sees how fast a thread's probes are just now, so that their cost is known where they are slow.

At one return of 64 the time is taken once more, when all is recorded. Where that takes longer than when the costs of
probes were measured, so do the other probes: another thread runs on the same core, the clock of the processor is lower,
or the program's own data and code have driven those of probes out of the caches.
"""

from anyprobe.data import layout as at
from anyprobe.data.costs import SLOWED, SLOWED_INSIDE, UNIT, Costs
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.processor_clock import leave_out

_CHANCE = 126
"""Bits of a call's end that are 0 where there is a trial; the lowest bit of the clock may always be."""
_SMOOTHED = 4
"""The power of two of trials that the pace is a mean of, more or less."""
_SLOWEST = 3
"""Times what it took at first; what takes longer was interrupted, or is a page's first use."""
_ANY = 1 << 12
_SHIFT = 16


def emit_chance(asm: Assembler, name: str) -> None:
    """Emit: go to the trial now and then (rsi = block); the exit is over otherwise."""
    asm.code(f"test byte [rsi+{at.BLOCK_ENDED}], {_CHANCE}; jz {name}_trial")


def emit_trial(asm: Assembler, costs: Costs, name: str, *, on_processors: bool) -> None:
    """Emit the trial (rsi = block); rax and rdx are overwritten."""
    whole, inside = SLOWED * costs.whole, SLOWED_INSIDE * costs.inside
    asm.code(
        f"""
        {name}_trial:
            rdtsc; shl rdx, 32; or rax, rdx
            {leave_out("rax", "rsi") if on_processors else ""}
            sub rax, [rsi+{at.BLOCK_ENDED}]; cmp rax, slowest; ja {name}_done
            inc qword [rsi+{at.BLOCK_TRIALS}]; add [rsi+{at.BLOCK_TRIED}], rax
            shl rax, {at.COST_BITS}; sub rax, pace
            sub rax, [rsi+{at.BLOCK_PACE}]; sar rax, {_SMOOTHED}; add [rsi+{at.BLOCK_PACE}], rax
            mov rax, [rsi+{at.BLOCK_PACE}]
            imul rdx, rax, more_inside; sar rdx, {_SHIFT}; add rdx, entered; mov [rsi+{at.BLOCK_ENTERED}], rdx
            imul rdx, rax, more; sar rdx, {_SHIFT}; add rdx, left; mov [rsi+{at.BLOCK_LEFT}], rdx
            jmp {name}_done
        """,
        slowest=_SLOWEST * costs.pace // UNIT or _ANY,
        pace=costs.pace,
        entered=costs.entered,
        left=costs.left,
        more_inside=_per_pace(inside, costs.pace),
        more=_per_pace(whole - inside, costs.pace),
    )


def _per_pace(cost: float, pace: int) -> int:
    """Return what a part of a tick more of the trial means for a cost, shifted."""
    return round(cost * (1 << _SHIFT) / pace) if pace else 0
