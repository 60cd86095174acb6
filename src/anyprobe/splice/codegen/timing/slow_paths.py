"""Generated code that times itself: what takes the longer the more calls are open has no constant cost.

A search among the open calls, and the making of room for more of them, are timed where they run. What they took is
added to the cost that the thread's times are free of, as the constant costs of probes are.
"""

from anyprobe.data.layouts.layout import BLOCK_COST, BLOCK_KEPT, BLOCK_SLOW, COST_BITS
from anyprobe.data.snapshots.costs import Costs


def _now(block: str, *, asks: bool) -> str:
    """Return code: rax = the time; rdx is overwritten. ``asks``: times are those on processors."""
    if not asks:
        return "rdtsc; shl rdx, 32; or rax, rdx"
    return "call moment" if block == "rdi" else f"push rdi; mov rdi, {block}; call moment; pop rdi"


def are_timed(costs: Costs, clock: int) -> bool:
    """Return whether costs are known; ``clock``: 0 where routines read the time stamp counter themselves."""
    return costs.pace > 0 and not clock


def begun(block: str, *, asks: bool) -> str:
    """Return code: it begins; rax and rdx are overwritten."""
    return f"{_now(block, asks=asks)}; mov [{block}+{BLOCK_SLOW}], rax"


def over(block: str, since: str = "", *, asks: bool) -> str:
    """Return code: it is over; ``since``: a register with the time of its beginning. rax and rdx are overwritten."""
    began = since or f"[{block}+{BLOCK_SLOW}]"
    return f"{_now(block, asks=asks)}; sub rax, {began}; shl rax, {COST_BITS}; add [{block}+{BLOCK_COST}], rax"


def keeping(block: str, code: str) -> str:
    """Return code that leaves rax and rdx as they are."""
    kept, more = f"[{block}+{BLOCK_KEPT}]", f"[{block}+{BLOCK_KEPT + 8}]"
    return f"mov {kept}, rdx; mov {more}, rax; {code}; mov rdx, {kept}; mov rax, {more}"


def taken(block: str, *, asks: bool) -> str:
    """Return code: rax = what the cost is to be raised by, of a search that has begun at the time in rdx."""
    now = _now(block, asks=asks)
    return f"{now}; sub rax, [{block}+{BLOCK_KEPT}]; shl rax, {COST_BITS}; mov [{block}+{BLOCK_SLOW}], rax"


def charged(block: str, free: str) -> str:
    """Return code that raises the cost by that."""
    return f"mov {free}, [{block}+{BLOCK_SLOW}]; add [{block}+{BLOCK_COST}], {free}"
