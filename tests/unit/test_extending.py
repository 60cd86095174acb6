"""What it takes to add to anyprobe from outside: the files of each addition, registered from here, and no others."""

import io
import sys

import pytest

from anyprobe import cli
from anyprobe.cli.measurement import measuring
from anyprobe.exporters import base
from support.sample_snapshots import snapshot

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


def plan(**settings):
    without = dict.fromkeys(("seconds", "every", "maxactive", "output"))
    off = dict.fromkeys(("quiet", "fold", "exit_status"), False)
    return measuring.Plan(specs=(), arm=None, render=None, strategy="auto", top=0, **without, **off, **settings)
