"""The members of findings, as documents have them."""

from collections.abc import Callable
from typing import Any

from anyprobe.core.documents import INTEGER, NUMBER, TEXT, WHOLE, Member, Members, listed, maybe, member, one_of, ref
from anyprobe.data.findings.offcpu import Cause
from anyprobe.data.findings.waiting import LockKind

REFUSED = Members(member("spec", TEXT), member("address", WHOLE), member("reason", TEXT), member("detail", TEXT))
PENDING = Members(
    member("spec", TEXT),
    member("module", maybe(TEXT), "what has to be loaded, where the spec names it", lambda each: each.module or None),
)
_TIMES = (
    member("count", WHOLE),
    member("sum_ns", WHOLE, of=lambda each: round(each.sum_ns)),
    member("self_ns", INTEGER, of=lambda each: round(each.self_ns)),
)
NODE = Members(member("module", TEXT), member("function", TEXT), *_TIMES)
CALLS = Members(
    member("caller", maybe(TEXT), "null where no timed function was", lambda each: each.caller or None),
    member("caller_module", maybe(TEXT), of=lambda each: each.caller_module or None),
    member("function", TEXT),
    member("module", TEXT),
    *_TIMES,
)
WAIT = Members(
    member("stack", listed(TEXT), "innermost first", lambda each: list(each.stack)),
    member("count", WHOLE),
    member("waited_ns", WHOLE),
)


def _waits(name: str, text: str = "") -> Member:
    return member(name, ref("waits"), text, lambda lock: list(map(WAIT.of, getattr(lock, name))))


def _durations(name: str) -> tuple[Member, ...]:
    def percentile(share: float) -> Callable[[Any], Any]:
        return lambda lock: getattr(lock, name).percentile(share)

    return (
        member(f"{name}_ns", WHOLE, of=lambda lock: getattr(lock, name).sum or 0),
        member(f"max_{name}_ns", maybe(NUMBER), of=lambda lock: getattr(lock, name).max),
        member(f"{name}_p50_ns", maybe(NUMBER), of=percentile(0.5)),
        member(f"{name}_p99_ns", maybe(NUMBER), of=percentile(0.99)),
    )


LOCK = Members(
    member("address", WHOLE),
    member("symbol", maybe(TEXT), of=lambda lock: lock.symbol or None),
    member("kind", one_of(*(each.name.lower() for each in LockKind)), of=lambda lock: lock.kind.name.lower()),
    member(
        "acquisitions", maybe(WHOLE), "null where only waits are seen",
        lambda lock: None if lock.kind is LockKind.FUTEX else lock.acquisitions,
    ),
    member("contended", WHOLE),
    *_durations("wait"),
    *_durations("hold"),
    member("holds", WHOLE, "how many times are in hold_ns", lambda lock: lock.hold.count),
    _waits("holders", "where it was taken by the thread that held it when another began to wait"),
    _waits("waiters"),
    _waits(
        "blockers",
        "where a mutex was given back by the thread that had held it while others waited, and for how long at least "
        "one had by then",
    ),
)  # fmt: skip
ASLEEP = Members(
    member("cause", one_of(*(each.name.lower() for each in Cause)), of=lambda each: each.cause.name.lower()),
    member("frames", listed(TEXT), "innermost first", lambda each: list(each.frames)),
    member("count", WHOLE),
    member("off_ns", WHOLE),
    member("max_off_ns", WHOLE, of=lambda each: each.longest_ns),
    member(
        "descriptor", maybe(TEXT), "the file, or the ends of the socket; ? where it was closed before it was asked for",
        lambda each: each.descriptor or None,
    ),
    member(
        "clipped", one_of(None, "before", "open", "all along"),
        "null for whole waits; else those that began before, that have not ended, or both: the part within",
        lambda each: str(each.state) or None,
    ),
)  # fmt: skip
