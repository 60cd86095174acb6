"""The members of findings, as documents have them."""

from collections.abc import Callable
from typing import Any

from anyprobe.core.documents import (
    FLAG,
    INTEGER,
    NUMBER,
    TEXT,
    WHOLE,
    Member,
    Members,
    Schema,
    listed,
    maybe,
    member,
    one_of,
    ref,
)  # fmt: skip
from anyprobe.data.findings.offcpu import Cause
from anyprobe.data.findings.waiting import LockKind
from anyprobe.data.findings.wakers import Waker

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


def _off(name: str, where: str) -> Member:
    return member(
        name, INTEGER, f"with --clock cpu: how long threads were on no processor {where}",
        lambda node: round(getattr(node, name)), when=lambda node: node.self_off_ns is not None,
    )  # fmt: skip


NODE = Members(
    member("module", TEXT),
    member("function", TEXT),
    *_TIMES,
    _off("off_ns", "in the function and what it called"),
    _off("self_off_ns", "in the function itself"),
)
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


def _objects(**kinds: Schema) -> Callable[[Any], Any]:
    """Return what makes objects of tuples, each part under a name."""
    return lambda rows: [dict(zip(kinds, map(_plain, row), strict=True)) for row in rows]


def _plain(value: object) -> object:
    return value.hex(" ") if isinstance(value, bytes) else value if isinstance(value, int) else str(value)


def _rows(name: str, **kinds: Schema) -> Member:
    """Return a member that is a list of objects, of what is a tuple of tuples."""
    members = Members(*(member(each, kind) for each, kind in kinds.items()))
    objects = _objects(**kinds)
    return member(name, listed(members.schema), of=lambda value: objects(getattr(value, name)))


def _texts(name: str) -> Member:
    return member(name, listed(TEXT), of=lambda value: list(getattr(value, name)))


_LINE = Members(
    member("address", WHOLE),
    member("bytes", TEXT, of=lambda line: line.bytes.hex(" ")),
    member("text", TEXT),
    member("marks", listed(one_of("IA", "DCR", "JTPR")), of=lambda line: list(line.marks)),
)
EXPLANATION = Members(
    member("spec", TEXT),
    member("module", TEXT),
    member("function", TEXT),
    member("address", WHOLE),
    member("function_start", WHOLE),
    member("disassembly", listed(_LINE.schema), of=lambda value: list(map(_LINE.of, value.disassembly))),
    _texts("live_registers"),
    _texts("dead_registers"),
    _texts("dead_vectors"),
    member("flags_live", FLAG),
    _rows("verdicts", strategy=TEXT, verdict=TEXT),
    _rows("patch", address=WHOLE, bytes=TEXT, text=TEXT),
    _texts("notes"),
    member("refused", maybe(TEXT)),
    _rows("sites", address=WHOLE, verdict=TEXT),
    member("timed", FLAG),
    member("stack", INTEGER),
    member("summary", TEXT),
)
_ARGUMENT = Members(
    member("name", TEXT),
    member("type", maybe(TEXT), "null where the operand is not understood"),
    member("operand", TEXT, "as the note has it", lambda argument: argument.text),
    member("problem", TEXT, optional=True),
)
_MARKER = Members(
    member("provider", TEXT),
    member("name", TEXT),
    member(
        "semaphore", maybe(INTEGER), "run-time address, null where the program has none",
        lambda marker: marker.semaphore or None,
    ),
    member("arguments", listed(_ARGUMENT.schema), of=lambda marker: list(map(_ARGUMENT.of, marker.arguments))),
)  # fmt: skip
_REFUSAL = Members(member("reason", TEXT), member("detail", TEXT))
_PARAMETER = Members(member("name", TEXT), member("type", TEXT))
_parameters = _objects(name=TEXT, type=TEXT)
LISTED = Members(
    member("spec", TEXT),
    member("module", TEXT),
    member("function", TEXT),
    member("offset", INTEGER),
    member("address", WHOLE),
    member(
        "arguments", maybe(listed(_PARAMETER.schema)), "null where debug information does not say",
        lambda site: None if site.arguments is None else _parameters(site.arguments),
    ),
    member("result", maybe(TEXT)),
    member("strategy", maybe(TEXT)),
    member(
        "refusal", {"anyOf": [_REFUSAL.schema, {"type": "null"}]}, "null where strategy is not",
        lambda site: None if site.refusal is None else _REFUSAL.of(site.refusal),
    ),
    member(
        "mechanisms", listed(TEXT), "in the kernel: what can probe it, the first choice first",
        lambda site: list(site.mechanisms), optional=True,
    ),
    member(
        "marker", _MARKER.schema, "of places of USDT markers", lambda site: _MARKER.of(site.marker),
        when=lambda site: site.marker,
    ),
)  # fmt: skip
"""A site that could be probed: exactly one of ``strategy`` and ``refusal`` is null."""
LEFTOVER = Members(
    member("address", WHOLE),
    member("type", TEXT),
    member("symbol", TEXT),
    member("offset", INTEGER),
    member("module", TEXT),
    member("strategy", TEXT),
    member("flags", listed(one_of("GONE", "DISABLED", "OPTIMIZED", "INTERNAL")), of=lambda each: list(each.flags)),
    member("session", TEXT),
    member("owner", WHOLE),
)


def _frames(name: str, attribute: str, text: str) -> Member:
    return member(name, listed(TEXT), text, lambda each: list(getattr(each, attribute)))


WOKEN = Members(
    member("waker", one_of(*map(str, Waker)), of=lambda each: str(each.waker)),
    member(
        "comm", maybe(TEXT), "the name of the thread that woke them; null of timers and interrupts",
        lambda each: each.comm or None,
    ),
    member("tid", maybe(WHOLE), of=lambda each: each.tid or None),
    _frames("frames", "stack", "where that thread was in its program, innermost first, as far as frame pointers lead"),
    _frames("kernel_frames", "waking", "where the kernel woke them"),
    _frames("sleeper_frames", "sleeper", "where in their program they slept, as far as frame pointers lead"),
    _frames("sleeper_kernel_frames", "sleeping", "where in the kernel they slept"),
    member("count", WHOLE, of=lambda each: each.slept.count),
    member("off_ns", WHOLE, "until they were woken", lambda each: each.slept.sum or 0),
    member("max_off_ns", WHOLE, of=lambda each: each.slept.max or 0),
)  # fmt: skip
