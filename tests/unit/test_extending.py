"""What it takes to add to anyprobe from outside: the files of each addition, registered from here, and no others."""

import io
import sys
import time

import pytest

from anyprobe import cli
from anyprobe.cli.measurement import measuring
from anyprobe.cli.measurement.cpu_times import OwnValues
from anyprobe.data.snapshots.interval import since
from anyprobe.data.snapshots.metrics import METRICS, series_of
from anyprobe.exporters import base
from anyprobe.probes.providers import provided
from anyprobe.probes.specs.spec import parse
from support import stack_metric
from support.driver import MissingTool
from support.sample_snapshots import snapshot
from support.simulated.compiled import CompiledProgram

EXPORTER = """
from anyprobe.exporters import base

class Lines:
    name = "lines"
    needs = base.Needs.ANYTHING
    holds_warnings = False
    may_repeat = True

    def write(self, found, stream):
        for site in found.together.all_sites:
            stream.write(f"{site.function}={site.hits}\\n")


EXPORTER = Lines()
"""
COMMAND = """
import click


@click.command("greet")
@click.argument("name")
def command(name):
    "Greet a name."
    click.echo(f"hello {name}")
    return 0
"""

PROGRAM = """
static unsigned long seen[6], calls;
unsigned long entered(unsigned long number) { return seen[number]; }
__attribute__((noinline)) long deep(long n) {
    seen[calls++] = (unsigned long)__builtin_dwarf_cfa() - 8; /* where the call has left its return address */
    return n ? deep(n - 1) + 1 : 0;
}
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a program that notes how deep its stack is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        return CompiledProgram(PROGRAM)
    except MissingTool as missing:
        pytest.skip(f"{missing} is not installed")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Make a module from a text, of a name."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return make


def test_a_file_format_is_one_file(module, monkeypatch):
    monkeypatch.setitem(base.BUILT_IN, "lines", module("toy_lines", EXPORTER))
    monkeypatch.delitem(base._registered, "lines", raising=False)
    stream = io.StringIO()
    measuring.show([snapshot()], plan(format="lines"), stream)
    assert stream.getvalue().splitlines() == ["free=7", "malloc=12345", "calloc=0"]


def test_a_command_is_one_file(module, monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "greet", "Greet a name.")
    monkeypatch.setitem(cli.MODULES, "greet", module("toy_greet", COMMAND))
    assert cli.main(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    cli.main(["--help"])
    assert "Greet a name." in capsys.readouterr().out


def test_a_provider_is_one_file(monkeypatch, program):
    monkeypatch.setitem(provided.REGISTRY, "timer", "support.timer_provider")
    with program.session() as session:
        deep, timer = session.count("a.out:deep", "timer:1ms,0ms")
        assert deep.armed
        assert timer.armed
        program.call("deep", 3)
        began = time.monotonic()
        while (waited := time.monotonic() - began) < 0.002:
            pass
        hits = {site.spec.rpartition("!")[2]: site.hits for site in session.snapshot().sites}
        assert hits.pop("timer:1ms") >= int(waited * 1000)
        assert [*hits.values()] == [4]
        assert [spec for spec, _ in session.refused] == ["timer:0ms"]


def test_a_metric_is_one_file(monkeypatch, program):
    monkeypatch.setitem(METRICS, stack_metric.NAME, stack_metric.METRIC)
    values = OwnValues(stack_metric.METRIC)
    with program.session() as session:
        values.arm(session, [parse("a.out:deep")])
        (top,) = (each.end for each in session.mappings() if each.path == "[stack]")
        program.call("deep", 3)
        before = values.seen(session.snapshot())
        program.call("deep", 1)
        together = values.seen(session.snapshot())
    entered = [top - program.call("entered", number) for number in range(6)]
    interval = since(together, before, "")
    (found,) = series_of(stack_metric.METRIC, [since(before, None, ""), interval], together)
    assert found.value == sum(entered) / 6
    assert found.values == [sum(entered[:4]) / 4, sum(entered[4:]) / 2]


def test_a_metric_that_is_registered_is_an_option(monkeypatch, capsys):
    assert cli.main(["metric", "--of", "stack", "libc:malloc"]) == 2
    assert "'stack' is not one of 'calls'" in capsys.readouterr().err
    monkeypatch.setitem(METRICS, stack_metric.NAME, stack_metric.METRIC)
    assert cli.main(["metric", "--of", "stack", "--by", "tid", "libc:malloc", "--", "/bin/true"]) == 2
    assert "--of stack is of all calls of functions" in capsys.readouterr().err


def plan(**settings):
    without = dict.fromkeys(("seconds", "every", "maxactive", "output"))
    off = dict.fromkeys(("quiet", "fold", "exit_status"), False)
    return measuring.Plan(specs=(), arm=None, render=None, strategy="auto", top=0, **without, **off, **settings)
