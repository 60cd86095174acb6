"""How much a function has on the stack where it jumps out: nothing where it makes a tail call."""

from anyprobe.binary.analysis.views import FunctionView
from anyprobe.binary.decoding.stack_depth import Frame, frame_after
from anyprobe.isa.decode import FLOWS, JUMPS, Flow

_ENDS = frozenset({Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RET, Flow.TRAP, Flow.INVALID, Flow.OTHER})
_MOST_SEEN = 20_000


def depths_at_jumps(function: FunctionView) -> dict[int, int | None]:
    """Return, by the targets of its direct jumps out, how many bytes a function has then pushed above the least.

    ``None``: that is not known, or differs. Only what direct jumps lead to is followed.
    """
    targets = function.jumps_out_to
    if not targets:
        return {}
    depths: dict[int, int | None] = {}
    found: dict[int, int | None] = {}
    todo = [(function.start, Frame(0, None))]
    steps = 0
    while todo:
        at, frame = todo.pop()
        while (number := function.index_of(at)) is not None:
            if at in depths and depths[at] in (frame.depth, None):
                break
            if at in depths:  # two ways with different depths: one of them follows what never returns
                frame = Frame(None, None)
            depths[at] = frame.depth
            steps += 1
            if steps > _MOST_SEEN:
                return {}
            one = function.iced[number]
            flow = FLOWS[one.code]
            if flow in JUMPS:
                aim = one.near_branch_target
                if aim in targets:
                    found[aim] = frame.depth if found.get(aim, frame.depth) == frame.depth else None
                todo.append((aim, frame))
            if flow in _ENDS:
                break
            if flow is Flow.NEXT:
                frame = frame_after(one, frame)
            at = one.next_ip
    return found
