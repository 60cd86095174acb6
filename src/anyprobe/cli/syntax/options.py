"""Options that several commands share, declared once."""

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from anyprobe.cli.terminal import streams

STRATEGIES = ("auto", "retarget", "jump", "punned", "short", "trap")
MECHANISMS = (
    "fentry", "fexit", "kprobe.multi", "kretprobe.multi", "kprobe", "kretprobe", "raw_tp", "tp_btf", "tracepoint",
    "perf_event", "uprobe", "uretprobe", "splice",
)  # fmt: skip
RETURNS = ("auto", "exits", "callers", "trampoline")
CLOCKS = ("auto", "tsc", "monotonic", "cpu")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def together(*decorators: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """Return one decorator that applies all, in the order in which help shows them."""

    def decorate(function: Decorated) -> Decorated:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def _read_specs(context: click.Context, parameter: click.Parameter, given: Any) -> Any:  # noqa: ANN401, ARG001
    """Return specs as text, also where the locale knows ASCII only: names in files are UTF-8."""
    if isinstance(given, str):
        return streams.as_text(given)
    return tuple(map(streams.as_text, given))


def _completing(what: str) -> Callable[[click.Context, click.Parameter, str], Any]:
    """Return what completes a parameter in a shell; it is imported when it is asked for."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> Any:  # noqa: ANN401
        return getattr(importlib.import_module("anyprobe.cli.syntax.completing"), what)(context, parameter, incomplete)

    return complete


class Whole(click.IntRange):
    """A whole number from a least one on, that is called by what it counts when it cannot be read."""

    def __init__(self, least: int, most: int | None = None, *, name: str = "number") -> None:
        """Say ``name`` in ``'abc' is not a valid ...``."""
        super().__init__(least, most)
        self.name = name


class Percent(click.FloatRange):
    """A share in percent."""

    name = "percentage"


class Format(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """The name of a file format."""

    name = "format"

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        """Return the name, if there is such a format."""
        from anyprobe.exporters import base

        if value not in base.names():
            self.fail(f"{value!r} is none of {', '.join(base.names())}", parameter, context)
        return value


class Seconds(click.FloatRange):
    """A time in seconds."""

    name = "number of seconds"


class Time(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A time with its unit, as nanoseconds."""

    name = "time"
    units = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}  # noqa: RUF012 - never changed

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """Return nanoseconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s)", value)
        if found is None:
            self.fail(f"{value!r} is no time with a unit: 1.5s, 20ms, 300us, 50ns", parameter, context)
        return float(found[1]) * self.units[found[2]]


class Span(Time):
    """Two times with two dots between them, each of which may be left out."""

    name = "range"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:  # noqa: ANN401
        """Return both in nanoseconds."""
        since, dots, until = value.partition("..")
        if not dots:
            self.fail(f"{value!r} is no range of times: 1.5s..2s, 1s.., ..20ms", parameter, context)
        read = super().convert
        return (
            read(since, parameter, context) if since else 0.0,
            read(until, parameter, context) if until else float("inf"),
        )


_spec: dict[str, Any] = {"callback": _read_specs, "shell_complete": _completing("specs")}
_pid: dict[str, Any] = {
    "type": Whole(1, name="process id (-n takes names)"), "multiple": True, "metavar": "PID",
    "shell_complete": _completing("pids"),
}  # fmt: skip
_name: dict[str, Any] = {"multiple": True, "metavar": "NAME", "shell_complete": _completing("names")}
specs = click.argument("specs", metavar="SPEC...", nargs=-1, required=True, **_spec)
optional_specs = click.argument("specs", metavar="[SPEC...]", nargs=-1, **_spec)
spec = click.argument("spec", metavar="SPEC", **_spec)

target = together(
    click.option("-p", "--pid", "pids", help="A running process; repeatable.", **_pid),
    click.option("-n", "--name", "names", help="All running processes of this name; repeatable.", **_name),
)

hosts = together(
    click.option(
        "-H",
        "--host",
        "hosts",
        multiple=True,
        metavar="HOST,...",
        help="On these hosts, [user@]name[:port], by SSH: the results of each, and their sum.",
    ),
    click.option(
        "--hosts",
        "hosts_file",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="On the hosts in a file, one a line.",
    ),
    click.option("--remote", metavar="COMMAND", help="How anyprobe is called there. Default: anyprobe."),
    click.option("--send", is_flag=True, help="Send this anyprobe to hosts that do not have it."),
)
"""On which machines the command runs: ``helping.Command`` takes these and hands them on to ``cli/network/hosts.py``."""

one_target = together(
    click.option("-p", "--pid", "pids", help="A running process.", **_pid),
    click.option("-n", "--name", "names", help="A running process by its name.", **_name),
)

on_kernel = click.option("--kernel", is_flag=True, help="Of the running kernel, not of a process.")
for_a_while = click.option(
    "--for", "seconds", type=Seconds(min=0), metavar="SECONDS",
    help="With --kernel: switch back after so long, or at Ctrl-C. Default: it stays.",
)  # fmt: skip

_json_of_results: dict[str, Any] = {"flag_value": "json", "default": None}
json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")

strategy = click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    default="auto",
    show_default=True,
    help="Demand one way of reaching the patch, instead of the cheapest that is safe.",
)

clock = click.option(
    "--clock",
    type=click.Choice(CLOCKS),
    default="auto",
    show_default=True,
    help="The time stamp counter; the kernel's monotonic clock, read without a system call; or cpu: for how long the "
    "thread has been on processors.",
)

raw = click.option("--raw", is_flag=True, help="Times as they were measured, with what probes take of them.")

returns = click.option(
    "--returns",
    type=click.Choice(RETURNS),
    default="auto",
    show_default=True,
    help="Where calls end: at exits and, after a jump to another function, in the caller; at exits only; in callers "
    "only; or, where exits cannot all be spliced, at a replaced return address if that is safe.",
)

live = click.option(
    "--live",
    is_flag=True,
    help="Arm and remove while the threads run on; what cannot be done so is done in a stop, and the reason is shown.",
)

unsafe = click.option("--unsafe", is_flag=True, help="Let handlers change what the program computes.")

when = click.option(
    "--when",
    metavar="EXPR",
    help="Only hits, or calls, for which this holds: arg0 > 4096, retval < 0, comm == 'main', ...",
)

pending = click.option(
    "--pending/--no-pending",
    "pending",
    default=None,
    help="Whether specs wait for libraries that are loaded later, and are in place before anything in these runs. "
    "Default: those that name a module which is not loaded.",
)

appearing = together(
    click.option("--new", is_flag=True, help="Also processes of that name, cgroup or container that appear later."),
    click.option("--cgroup", metavar="PATH", help="Processes in this control group: /system.slice/nginx.service."),
    click.option("--container", metavar="ID", help="Processes in this container, by the beginning of its id."),
)

follow = click.option(
    "-f",
    "--follow/--no-follow",
    "follow",
    default=None,
    help="Probe programs that are executed, too, from their first instruction on. Default: with a command after --.",
)

children = click.option(
    "--children",
    type=click.Choice(["count", "ignore", "free"]),
    default=None,
    help="Whether fork children count, too, are left out of counts, or run on without probes. Default: count.",
)


class Key(click.Choice[str]):
    """What results are told apart by; a refusal names the command that takes any key."""

    def __init__(self, choices: "Sequence[str]", instead: str) -> None:
        """``instead``: the command that takes others."""
        super().__init__(choices)
        self._instead = instead

    def get_invalid_choice_message(self, value: "Any", ctx: click.Context | None) -> str:  # noqa: ANN401
        """Return what is said of another key."""
        return f"{super().get_invalid_choice_message(value, ctx).rstrip('.')}; by any other key: {self._instead}"


by = click.option(
    "--by",
    type=Key(["pid"], "anyprobe hist SPEC --by stack"),
    help="Tell processes apart: each one named, fork children, and programs that are executed.",
)

mechanism = click.option(
    "--mechanism",
    type=click.Choice(MECHANISMS),
    metavar="NAME",
    help="Demand one way of probing the kernel, instead of the cheapest that it takes: fentry, kprobe, kprobe.multi, "
    "raw_tp, tracepoint.",
)

include_self = click.option(
    "--include-self",
    is_flag=True,
    help="Of the kernel: have hits in anyprobe itself, too, which are left out otherwise.",
)

hot = click.option(
    "--hot",
    type=Whole(1),
    metavar="N",
    help="Also the N functions that two seconds of samples show to be hot, with self times: see 'anyprobe profile'.",
)

lines = click.option(
    "--lines",
    is_flag=True,
    help="Show stacks with source lines and inlined functions, of what has debug information.",
)
tree = click.option(
    "--tree",
    is_flag=True,
    help="Show which functions called which, of those that are timed, as a tree; self times, too.",
)
timed_by = click.option(
    "--by",
    type=Key(["pid", "tid", "func(caller)"], "anyprobe hist SPEC --of latency_ns --by stack"),
    help="Tell processes apart, fork children and programs that are executed too; threads; or who called a function.",
)

_until = click.option(
    "--for", "seconds", type=Seconds(min=0), metavar="SECONDS", help="End after so long. Default: Ctrl-C."
)
heat = click.option(
    "--heat", is_flag=True, help="Below the tables also heat maps: which durations or values there were when."
)
_arming = together(
    strategy,
    mechanism,
    include_self,
    returns,
    live,
    click.option(
        "--maxactive",
        type=Whole(1),
        metavar="N",
        help="Calls of one thread that can be timed at once. Default: the engine's; more are counted as missed.",
    ),
    click.option(
        "--max-overhead",
        type=Percent(min=0, min_open=True),
        metavar="PERCENT",
        help="Remove the dearest probes when all cost more than this share of one CPU, by an estimate.",
    ),
    click.option(
        "--max-setup",
        type=Seconds(min=0, min_open=True),
        metavar="SECONDS",
        help="Place probes for so long, where the program is just now first, and say what is left out.",
    ),
    click.option(
        "--at-once",
        is_flag=True,
        help="Begin with the 256 functions where the program is just now; place the others meanwhile.",
    ),
)
_output = together(
    click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Write the results there; to a RUN.aprobe all of them, for 'anyprobe show', 'report', 'merge' and 'diff'. "
        "%r is the rank under mpirun or srun.",
    ),
    click.option("--quiet", is_flag=True, help="No progress, no warnings, only results."),
)

_ending = together(
    click.option(
        "--kill",
        "at_end",
        flag_value="kill",
        help="Tell a command after -- to end, whatever ends the session: SIGTERM, and SIGKILL 5 s after it.",
    ),
    click.option(
        "--leave",
        "at_end",
        flag_value="leave",
        help="Let it run on instead, without probes. Default: --kill after --for SECONDS, --leave after Ctrl-C.",
    ),
    click.option("--exit-status", is_flag=True, help="Exit as the started command did."),
)

processes = together(follow, children, target, appearing)
"""Which processes are meant, and what becomes of those that they start."""
_json_lines = click.option("--json", "format", help="Print one JSON document per line.", **_json_of_results)
_json_document = click.option("--json", "format", help="Print one JSON document.", **_json_of_results)
following = together(
    _until,
    _ending,
    _json_lines,
    _arming,
    _output,
)

watching = together(
    _until,
    _ending,
    _json_lines,
    _output,
)

injecting = together(
    _until,
    _ending,
    _json_document,
    _arming,
    _output,
)

replacing = together(
    _until,
    _ending,
    _json_document,
    strategy,
    live,
    _output,
)

recording = together(_until, _ending, _arming, _output)
auditing = together(
    _until,
    _ending,
    strategy,
    live,
    click.option("--quiet", is_flag=True, help="No progress, no warnings, only the number of events."),
)

_top = click.option(
    "--top",
    type=Whole(0),
    default=40,
    show_default=True,
    metavar="N",
    help="Show the busiest N only, 0 for all.",
)
_full_names = click.option(
    "--full-names",
    is_flag=True,
    help="Show names of functions whole. Default: parameters and types of long ones are left out, but in JSON.",
)
_formats = together(
    click.option("--json", "format", help="Print one JSON document: --format json.", **_json_of_results),
    click.option(
        "--format",
        type=Format(),
        metavar="NAME",
        help="Write results for other tools: json; of trees of calls flame (a page with a flame graph), folded (stacks "
        "with nanoseconds, as flamegraph.pl reads them), pprof, speedscope; of coverage html, lcov, cobertura, drcov, "
        "fdata (for BOLT), llvm-sample (for clang); archive, which -o RUN.aprobe means.",
    ),
)

profiling = together(
    click.option(
        "--for", "seconds", type=Seconds(min=0), metavar="SECONDS",
        help="End after so long. Default: 5 with -p and -n; with a command after --, its end.",
    ),
    _ending,
    _formats,
    _full_names,
    _output,
    _top,
)  # fmt: skip

_documents = together(
    _formats,
    click.option(
        "--nonzero/--zero",
        "nonzero",
        default=None,
        help="Whether JSON leaves out what was not hit. Default: with --every it does.",
    ),
    click.option(
        "--buckets/--no-buckets",
        "buckets",
        default=None,
        help="Whether JSON has the buckets of timed functions. Default: with --every it has not.",
    ),
)
_rows = together(
    click.option(
        "--fold",
        is_flag=True,
        help="One line per function for insn, block and call specs, in JSON one site per USDT marker.",
    ),
    _full_names,
    _output,
    _top,
)
measuring = together(
    _until,
    _ending,
    click.option(
        "--every",
        type=Seconds(min=0, min_open=True),
        metavar="SECONDS",
        help="Print what was counted since the last time, again and again, and all of it at the end.",
    ),
    _documents,
    _arming,
    _rows,
)
comparing = together(_formats, _output, _top)
showing = together(_documents, _rows)
archive = click.argument("archive", metavar="RUN.aprobe", type=click.Path(dir_okay=False))
archives = click.argument("archives", metavar="RUN.aprobe...", type=click.Path(dir_okay=False), nargs=-1, required=True)
