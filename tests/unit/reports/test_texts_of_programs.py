"""No text of a program reaches a terminal raw, in whichever column of whichever table."""

import dataclasses
import importlib
import inspect
import io
import pkgutil
import re

import pytest
from rich.console import Console

from anyprobe import reports
from anyprobe.core.printable import printable
from anyprobe.data.aggregates.results import AggregationResult, CellValue, MapResult
from anyprobe.data.findings.calltree import CallNode
from anyprobe.data.findings.coverage import Coverage, CoveredFunction, CoveredModule
from anyprobe.data.findings.refused import RefusedSite
from anyprobe.data.layouts.histogram import Bucket
from anyprobe.data.snapshots.nested import NestedTiming
from anyprobe.data.snapshots.processes import ProcessCounts, ProcessInfo, TargetInfo, ThreadTimes
from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot
from anyprobe.reports.plain import PlainConsole
from anyprobe.reports.records import line as line_of_record
from anyprobe.reports.terminal import Terminal
from anyprobe.reports.trace import Hit
from anyprobe.reports.trace import line as line_of_hit

HOSTILE = "\x1b[2J\x1b]52;c;AAAA\a\r\b\u202egnp\u2066\x9b1m\x7f\udcff\n["
"""Clears the screen, sets the clipboard, beeps, overwrites, reverses what follows, colours it, and is no UTF-8."""
BUCKETS: tuple[Bucket, ...] = ((1.0, 2.0, 3), (64.0, 65.0, 1))
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def named(name: str) -> str:
    return f"{name}{HOSTILE}"


def hostile() -> Snapshot:
    """Return results of every kind, with every text that a program can choose as bad as can be."""
    process = ProcessInfo(7, f"/tmp/{named('exe')}")
    sites = tuple(
        SiteResult(
            named("spec"), named("module"), named("function"), 0, 4096, named("strategy"), armed=number % 2 == 0,
            hits=5, nmissed=1, kind=kind, notes=(named("note"),), label=label, undivided=True,
        )
        for number, kind in enumerate(("entry", "return", "offset", "usdt"))
        for label in ("", named("label"))
    )  # fmt: skip
    timing = FunctionTiming(
        spec=named("spec"), module=named("module"), function=named("function"), count=4, tail_exits=9, sum_ns=70.0,
        min_ns=1.0, max_ns=64.0, buckets=BUCKETS, nmissed=1, in_flight=1, learning=2, left=1, unmatched=1, callers=3,
        callers_refused=((named("reason"), 2),),
    )  # fmt: skip
    timings = (
        timing,
        dataclasses.replace(timing, function=named("silent"), count=0, sum_ns=0.0, buckets=(), tail_exits=0),
    )
    key = (named("key"), 3)
    by = (named("part"), "tid")
    cell = CellValue(4, 70, 1, 64, None, BUCKETS)
    return Snapshot(
        target=TargetInfo(7, f"/tmp/{named('exe')}", called=named("called")),
        others=(TargetInfo(8, f"/tmp/{named('other')}"),),
        duration_s=1.0,
        pause_us={"arm": 3.0},
        sites=sites,
        functions=timings,
        refused=(
            RefusedSite(named("refused"), 1, named("reason"), named("detail")),
            RefusedSite(named("gone"), 1, "gone", named("detail")),
        ),
        aggregations=tuple(
            AggregationResult(named(kind) + suffix, kind, by, {key: cell, (named("other"), 4): cell}, dropped=1)
            for kind in ("count", "sum", "min", "max", "avg", "stddev", "hist", "quantize", "lquantize")
            for suffix in ("", "_ns")
        ),
        maps=(MapResult(named("map"), by, {key: named("value"), (named("x"), 2): 5}),),
        dropped={named("ring"): {named("cause"): 2}},
        missing={named("missing"): 2, "abandoned": 1},
        processes=(ProcessCounts(process, {site.key: 5 for site in sites}, timings),),
        coverage=Coverage(
            (
                CoveredModule(
                    named("module"),
                    named("path"),
                    None,
                    (CoveredFunction(named("function"), 1, {0: None}),),
                    {named("file"): {3: None, 4: 0}},
                    named("reason"),
                ),
            )
        ),
        threads=(ThreadTimes(process, 9, named("thread"), timings),),
        tree=(CallNode(named("m"), named("outer"), 2, 9.0, 3.0, (CallNode(named("m"), named("inner"), 1, 6.0, 6.0),)),),
    )


def print_functions() -> list:
    """Return every function that prints a report of a snapshot."""
    functions = []
    for module in pkgutil.iter_modules(reports.__path__):
        found = importlib.import_module(f"anyprobe.reports.{module.name}")
        for name, function in vars(found).items():
            if not inspect.isfunction(function) or function.__module__ != found.__name__ or name.startswith("_"):
                continue
            wanted = list(inspect.signature(function).parameters)
            if wanted[:2] == ["snapshot", "console"]:
                functions.append(pytest.param(function, id=f"{module.name}.{name}"))
    return functions


def test_every_report_is_looked_at():
    assert len(print_functions()) >= 8


def raw(text: str) -> list[str]:
    return sorted({repr(each) for each in COLOURS.sub("", text) if not each.isprintable() and each != "\n"})


@pytest.mark.parametrize("function", print_functions())
@pytest.mark.parametrize("width", [300, 100, 50])
@pytest.mark.parametrize("nested", [False, True])
def test_no_column_of_a_report_has_raw_bytes(function, width, nested):
    """Neither by rich as it is, so that columns are as wide as their texts, nor by either of our own consoles."""
    shown = hostile()
    if nested:
        timings = tuple(dataclasses.replace(each, nested=NestedTiming(5.0, 6.0, 7.0)) for each in shown.functions)
        shown = dataclasses.replace(shown, functions=timings)
    arguments = [0] if "top" in inspect.signature(function).parameters else []
    if "what" in inspect.signature(function).parameters:
        arguments = ["3 hits", named("behind")]
    for kind in (
        lambda stream: Console(file=stream, width=width, highlight=False, emoji=False),
        lambda stream: PlainConsole(stream, width),
        lambda stream: Terminal(file=stream, width=width, highlight=False, emoji=False, force_terminal=True),
    ):
        stream = io.StringIO()
        function(shown, kind(stream), *arguments)
        assert not raw(stream.getvalue())


def test_lines_of_hits_and_records_have_none():
    hit = Hit(
        1.0, "3", named("place"), [(named("argument"), named("text"))], has_result=True, result=named("result"),
        printed={named("label"): named("printed")}, name=named("thread"),
    )  # fmt: skip
    assert not raw(line_of_hit(hit))
    assert not raw(line_of_record(named("name"), "", {"a": named("value")}))
    assert not raw(line_of_record("name", "says {a}", {"a": named("value")}))


def test_a_console_has_none_of_what_a_report_forgets():
    for console in (
        lambda stream: Terminal(file=stream, force_terminal=True, highlight=False),
        lambda stream: PlainConsole(stream, 80),
    ):
        stream = io.StringIO()
        console(stream).print(f"[red]forgotten {HOSTILE.removesuffix('[')}[/red]", soft_wrap=True)
        assert not raw(stream.getvalue())
        assert "\\x1b" in stream.getvalue()


def test_what_is_printable_stays():
    text = "größe → 关数 é 'x' \\x1b"
    assert printable(text) is text
    assert printable("a\tb\nc\u202e\u2028\U000e0001") == "a\\tb\\nc\\u202e\\u2028\\U000e0001"
    assert printable("two\nlines\x1b", "\n") == "two\nlines\\x1b"
