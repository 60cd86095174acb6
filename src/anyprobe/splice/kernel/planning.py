"""Plans of splices in a kernel: the planner of processes, with what is different in a kernel.

All processors stand still while a kernel's text is written, and no task is between two of the displaced instructions,
so several may be displaced together. There is no memory in reach of the text but what the driver has, so no jump is
made of bytes that stay.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import groupby

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.planner import Planner
from anyprobe.splice.plan.splices import PlannedSplice, Strategy, Want

ALLOWED = frozenset({Strategy.RETARGET, Strategy.JUMP})
_ENDBR = b"\xf3\x0f\x1e\xfa"
_CHANGED = {
    Reason.STATIC_KEY: "a static key",
    Reason.STATIC_CALL: "a static call",
    Reason.FTRACE_SITE: "an ftrace site",
    Reason.ALTERNATIVE: "an alternative",
}
"""What a kernel rewrites while it runs."""


def plan(
    code: CodeMap, wants: Sequence[Want], claims: Claims, padding: Sequence[int] = ()
) -> tuple[list[PlannedSplice], list[tuple[Want, Refusal]]]:
    """Return the splices for some instructions of a kernel or module, and what is refused; the splices are claimed.

    ``padding`` is where padding before functions begins, ascending, that the kernel may use for code of its own.
    """
    made: list[PlannedSplice] = []
    refused: list[tuple[Want, Refusal]] = []
    homes: list[tuple[FunctionCode, Want]] = []
    for want in wants:
        home = code.containing(want.address)
        if home is None:
            refused.append((want, Refusal(Reason.NOT_CODE, want.address, "no function is known here")))
        elif home.whole.startswith(_ENDBR) and want.address == home.start:
            detail = "indirect calls must land on this endbr64; the entry is after it"
            refused.append((want, Refusal(Reason.LANDING_PAD, want.address, detail)))
        else:
            homes.append((home, want))
    homes.sort(key=lambda each: (each[0].start, each[1].address))
    context = PlanContext(code, claims, lambda _: False, ALLOWED, pages_apart=False)
    for _, group in groupby(homes, key=lambda each: each[0].start):
        together = list(group)
        start, end = together[0][0].start, together[0][0].end
        if together[0][0].whole.startswith(_ENDBR):
            claims.written.add_range(start, start + len(_ENDBR))
        near = bisect_left(padding, end)
        for at in padding[near : near + 1]:
            claims.written.add_range(at, at + JUMP_BYTES)
        planned = Planner(context).plan(together[0][0], [want for _, want in together])
        for splice in planned.splices:
            claims.claim(splice)
        made += planned.splices
        refused += [(want, _told(why, end)) for want, why in planned.refused]
    return made, refused


def _told(why: Refusal, end: int) -> Refusal:
    """Return a refusal by what it means in a kernel; no other splice is in the padding after a function."""
    if why.reason is Reason.OVERLAP and why.address >= end:
        return Refusal(Reason.TOO_SHORT, why.address, "a jump would reach into padding that the kernel may use")
    if why.reason in _CHANGED:
        return Refusal(why.reason, why.address, f"the kernel changes these bytes itself: {_CHANGED[why.reason]}")
    return why
