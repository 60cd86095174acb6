"""Help pages, and what is said of a slip."""

import re
import subprocess
import sys

import pytest

from anyprobe.cli import COMMANDS, ELSEWHERE, main
from anyprobe.cli.syntax import helping

STARTING = ("count", "time", "trace", "hist", "script")


def shown(capsys, *arguments, status=0):
    assert main(arguments) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


@pytest.mark.parametrize("command", STARTING)
def test_the_usage_has_the_command_to_start(capsys, command):
    assert re.match(rf"Usage: anyprobe {command} \[OPTIONS\] .* \[-- COMMAND...\]\n", shown(capsys, command, "--help"))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_help_talks_of_types_and_bounds(capsys, command):
    page = shown(capsys, command, "--help")
    assert not re.search(r"RANGE|INTEGER|FLOAT|TEXT|\[x[<>]|x>=", page)


@pytest.mark.parametrize("command", ["count", "time", "trace", "hist", "list", "explain"])
def test_each_help_points_to_what_a_spec_is(capsys, command):
    assert "see 'anyprobe help specs'" in " ".join(shown(capsys, command, "--help").split())


def test_options_are_in_groups(capsys):
    titles = re.findall(r"^(\w[^\n]*):$", shown(capsys, "count", "--help"), re.MULTILINE)
    assert titles == [*helping.GROUPS, "Options"]
    assert "[default: 40]" in shown(capsys, "count", "--help")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("N of them.  [x>=1]", "N of them."),
        ("N.  [default: 40; x>=0]", "N.  [default: 40]"),
        ("N.  [0<=x<=7]", "N."),
        ("A share.  [x>0]", "A share."),
        ("How.  [default: exits]", "How.  [default: exits]"),
    ],
)
def test_bounds_are_left_out(text, plain):
    assert helping.plain(text) == plain


@pytest.mark.parametrize("slip", ["cuont", "counts", "cont"])
def test_a_slip_is_told_what_may_be_meant(capsys, slip):
    expected = f"anyprobe: No such command '{slip}'; did you mean count?\n"
    assert shown(capsys, slip, "x:y", "-p", "1", status=2).startswith(expected)


@pytest.mark.parametrize(("name", "command"), ELSEWHERE.items())
def test_what_other_tools_call_a_command_leads_to_it(capsys, name, command):
    told = shown(capsys, name, "x:y", status=2)
    assert told.startswith(f"anyprobe: No such command '{name}'; that is 'anyprobe {command}' here\n")
    assert name not in COMMANDS
    assert command.split()[0] in COMMANDS


def test_without_a_command_the_help_is_shown_as_it_is(capsys):
    assert shown(capsys, status=2).rstrip() == shown(capsys, "--help").rstrip()
    assert shown(capsys, "usdt", status=2).startswith("Usage: anyprobe usdt ")


def test_what_is_no_slip_has_the_list(capsys):
    assert "commands are count, time, " in shown(capsys, "zzz", status=2)


@pytest.mark.parametrize("arguments", [["count"], ["count", "x", "--hope"], ["count", "x", "-p", "no"], ["zzz"], []])
def test_errors_have_one_style(arguments):
    command = [sys.executable, "-m", "anyprobe", *arguments]
    told = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert told.returncode == 2
    assert "Error:" not in told.stderr
    assert told.stderr.startswith("anyprobe: ") or not arguments


def test_help_on_specs_and_on_commands(capsys):
    page = shown(capsys, "help", "specs")
    assert all(each in page for each in ("provider:module:function:name", "%return", "%insn", "uprobe:PATH:SYMBOL"))
    assert max(map(len, page.splitlines())) <= 80
    assert shown(capsys, "help", "count") == shown(capsys, "count", "--help")
    assert shown(capsys, "help") == shown(capsys, "--help")
    assert "there is no help on 'zzz'" in shown(capsys, "help", "zzz", status=2)
