"""The members of snapshots' parts, as documents have them."""

from typing import Any

from anyprobe.core.documents import (
    FLAG,
    INTEGER,
    NUMBER,
    TEXT,
    TIME,
    TRUE,
    WHOLE,
    Member,
    Members,
    Schema,
    listed,
    maybe,
    member,
    named,
    one_of,
)  # fmt: skip
from anyprobe.data.layouts import histogram

_STRATEGIES = (
    "retarget", "jump", "punned", "short", "trap", "mixed", "fentry", "fexit", "kprobe.multi", "kretprobe.multi",
    "tp_btf", "perf_event", "uprobe", "uretprobe", "kprobe", "kretprobe", "raw_tp", "tracepoint", "splice",
)  # fmt: skip
_KINDS = ("entry", "return", "offset", "insn", "block", "run", "call", "taken", "usdt")
_EXIT = one_of("ret", "tail", "trampoline", "caller")
_BUCKETS: Schema = {
    **listed({"type": "array", "prefixItems": [NUMBER, NUMBER, WHOLE], "minItems": 3, "maxItems": 3}),
    "description": "lower bound, upper bound, count; lines of --every have them with --buckets",
}
_EXIT_KIND = member("exit_kind", _EXIT, when=lambda each: each.exit_kind is not None)
_ARMING = member("arming", TEXT, optional=True)

SITE = Members(
    member("spec", TEXT),
    member("module", TEXT),
    member("function", TEXT),
    member("offset", INTEGER),
    member("address", WHOLE),
    member("strategy", one_of(*_STRATEGIES)),
    member("armed", FLAG),
    member("hits", WHOLE),
    member("nmissed", WHOLE, "hits that could not be counted as asked"),
    member("kind", one_of(*_KINDS)),
    _EXIT_KIND,
    _ARMING,
    member("folded_sites", WHOLE, "of how many sites this is the sum", optional=True),
    member("learning", WHOLE, "hits of handlers at a jump, whose caller was not known yet", optional=True),
    member("tail_exits", WHOLE, "hits of handlers at a jump, whose caller cannot be spliced", optional=True),
    member(
        "undivided", FLAG, "hits of fork children are among those of their parent: they are not told apart there",
        optional=True,
    ),
    member(
        "since", TIME,
        "seconds after the beginning from which on it counts, where that is later: its rate is of the time after it",
        optional=True,
    ),
    member("notes", listed(TEXT), of=lambda site: list(site.notes), optional=True),
)  # fmt: skip
EXIT = Members(
    member("offset", INTEGER),
    member("address", WHOLE),
    member("strategy", TEXT),
    member("armed", FLAG),
    _EXIT_KIND,
    _ARMING,
    closed=True,
)
"""A function's exit that has no counter."""


def _percentiles() -> Member:
    names = [f"p{share}_ns" for share in (50, 90, 99)]
    bounds: Schema = {
        **named(one_of("at least")),
        "description": "of percentiles that lie beyond the other buckets: what the number is",
    }

    def of(timing: Any) -> dict[str, Any]:  # noqa: ANN401 - a function's timing
        return histogram.percentiles_json({name: timing.quantile(int(name[1:-3]) / 100) for name in names})

    return Member({**dict.fromkeys(names, maybe(NUMBER)), "percentile_bounds": bounds}, of, required=names)


def _of_nested(name: str, text: str) -> Member:
    return member(
        name, INTEGER, f"with --self: {text}", lambda timing: round(getattr(timing.nested, name)),
        when=lambda timing: timing.nested,
    )  # fmt: skip


def _of_cpu(name: str, field: str, text: str) -> Member:
    return member(name, TIME, text, lambda timing: round(getattr(timing.cpu, field)), when=lambda timing: timing.cpu)


def _rounded(ns: float | None) -> float | None:
    return None if ns is None else round(ns, 3)


FUNCTION = Members(
    member("spec", TEXT),
    member("module", TEXT),
    member("function", TEXT),
    member("address", WHOLE),
    member("count", WHOLE),
    member("tail_exits", WHOLE, "calls on top of count, which left by a jump to another function"),
    member("unmatched", WHOLE, "exits whose entry was not seen"),
    member("sum_ns", INTEGER, of=lambda timing: round(timing.sum_ns)),
    member("min_ns", maybe(NUMBER), of=lambda timing: _rounded(timing.min_ns if timing.count else None)),
    member("max_ns", maybe(NUMBER), of=lambda timing: _rounded(timing.max_ns if timing.count else None)),
    member("mean_ns", maybe(NUMBER), of=lambda timing: _rounded(timing.mean_ns)),
    _percentiles(),
    Member(
        {"buckets": _BUCKETS},
        lambda timing: [[_rounded(low), _rounded(high), count] for low, high, count in timing.buckets],
        "buckets",
    ),
    member("nmissed", WHOLE),
    member("in_flight", WHOLE, "calls that have not come back"),
    member(
        "open_ns", INTEGER,
        "of these, the time up to the end of the program, once it has ended; in self_ns and root_ns, and in no sum of "
        "calls",
        lambda timing: round(timing.open_ns),
    ),
    member(
        "learning", WHOLE,
        "calls that left by a jump and were not timed, since their caller was not known yet; on top of count",
    ),
    member("complete", FLAG, "false where calls of the function have ended that were not timed"),
    member(
        "open_at_most", TRUE, "the end of the program was seen, and not told by itself: open_ns is up to then",
        lambda timing: timing.open_is_bound, optional=True,
    ),
    _of_nested("self_ns", "the time in the function itself, without what other timed functions took that it called"),
    _of_nested("outermost_ns", "as sum_ns, but without calls that were made within others of the same function"),
    _of_nested(
        "root_ns",
        "the time of calls that no timed function made, without what they waited for while the thread was on other "
        "stacks; in all, with in_no_row, as much as self_ns",
    ),
    member(
        "self_off_ns", INTEGER, "with --clock cpu and --self: how long threads were on no processor in it itself",
        lambda timing: round(timing.nested.self_off_ns),
        when=lambda timing: timing.nested and timing.nested.self_off_ns is not None,
    ),
    _of_cpu("cpu_ns", "cpu_ns", "with --cpu: how long the calls were on processors"),
    _of_cpu("off_ns", "off_ns", "with --cpu: the rest of their time"),
    _of_cpu("cpu_error_ns", "error_ns", "with --cpu: how far both may be off together"),
    member(
        "error_ns", WHOLE, "how far sum_ns may be off, by what probes took and is not in it",
        lambda timing: round(timing.taken.error_ns), when=lambda timing: timing.taken,
    ),
    member(
        "raw_sum_ns", INTEGER, "sum_ns as it was measured, with what probes took",
        lambda timing: round(timing.sum_ns + timing.taken.sum_ns), when=lambda timing: timing.taken,
    ),
    member(
        "raw_self_ns", INTEGER, "with --self: the same of self_ns",
        lambda timing: round(timing.nested.self_ns + timing.taken.self_ns),
        when=lambda timing: timing.taken and timing.nested,
    ),
    member(
        "self_error_ns", WHOLE, "with --self: how far self_ns may be off",
        lambda timing: round(timing.taken.self_error_ns), when=lambda timing: timing.taken and timing.nested,
    ),
    member(
        "outermost_error_ns", WHOLE, "with --self: how far outermost_ns may be off",
        lambda timing: round(timing.taken.outermost_error_ns), when=lambda timing: timing.taken and timing.nested,
    ),
    member(
        "left", WHOLE,
        "with --self, or if there are any: calls that an exception, a panic or longjmp has left behind, and that were "
        "not timed",
        when=lambda timing: timing.nested is not None or timing.left,
    ),
    member(
        "callers",
        Members(
            member("watched", WHOLE), member("refused", named({"type": "integer", "minimum": 1})), closed=True
        ).schema,
        "where calls that left by a jump end: places that are watched, and those that are refused, by reason",
        lambda timing: {"watched": timing.callers, "refused": dict(timing.callers_refused)},
        when=lambda timing: timing.callers or timing.callers_refused,
    ),
    member(
        "exits", listed(EXIT.schema), "where returns are seen, which are counted together",
        lambda timing: [EXIT.of(each) for each in timing.places[1:] if each.exit_kind is not None],
        when=lambda timing: timing.places,
    ),
    _EXIT_KIND,
)  # fmt: skip
PROCESS = Members(
    member("pid", WHOLE),
    member("exe", TEXT),
    member(
        "exited", maybe(INTEGER),
        "as a shell would see it, of a process that has ended; null also where that is not known",
        lambda target: target.shell_status,
    ),
    member("alive", FLAG, of=lambda target: target.alive and target.exited is None),
    member("killed_by", TEXT, "the name of the signal that has ended it", optional=True),
    member(
        "died_at",
        Members(
            member("pc", INTEGER),
            member("in", one_of("program", "anyprobe", None), "whose code it is; null where no code is known"),
            member(
                "place", maybe(TEXT), "the instruction by name; of what a patch has displaced, the original",
            ),
            closed=True,
        ).schema,
        "the instruction at which a fault has ended it, where the kernel's log has it",
        lambda target: {"pc": target.died_at, "in": target.died_in or None, "place": target.died_place or None},
        when=lambda target: target.died_at is not None,
    ),
)  # fmt: skip
KERNEL = Members(
    member("kernel", TEXT, "the release of the running kernel"),
    member(
        "pids", listed(INTEGER), "the only processes whose hits were counted; left out if those of all were",
        lambda target: list(target.pids), optional=True,
    ),
    member(
        "children", TRUE, "hits in what these have started were counted, too; left out if they were not",
        when=lambda target: target.children and target.pids,
    ),
    member(
        "without", listed(INTEGER),
        "the processes whose hits were not counted, anyprobe's own (--include-self); left out if there are none",
        lambda target: list(target.without), optional=True,
    ),
)  # fmt: skip
COUNTED = Members(
    member("pid", WHOLE),
    member("exe", TEXT),
    member(
        "generation", {"type": "integer", "minimum": 1},
        "1, and one more with each program that the process has executed",
    ),
    member(
        "started", maybe(NUMBER),
        "when the process began, as Unix time; null where it had ended before it was looked at",
    ),
    member("exited", maybe(INTEGER)),
    member("alive", FLAG),
)  # fmt: skip
THREAD = Members(
    member("pid", INTEGER, of=lambda thread: thread.process.pid),
    member("tid", WHOLE, "0: threads that are not told apart"),
    member("name", TEXT, "as it was last seen; empty where it had ended before"),
    closed=True,
)
