"""The command line that follows a program which has become another."""

import shlex

import pytest

from anyprobe.cli.programs.ending import elsewhere


@pytest.mark.parametrize(
    ("given", "again"),
    [
        ("count libc:malloc", "count libc:malloc -p 7"),
        ("count libc:malloc --for 3 --kill --json", "count libc:malloc --for 3 --json -p 7"),
        ("time x:y -p 5 --leave --exit-status", "time x:y -p 7"),
        ("time x:y -p5 -p 6 --every=2", "time x:y --every=2 -p 7"),
        ("hist x:y --pid=5 --of 'arg0 + 1'", "hist x:y --of 'arg0 + 1' -p 7"),
        ("count -n nginx --name redis x:y", "count x:y -p 7"),
    ],
)
def test_a_command_line_for_another_process(given, again):
    assert shlex.join(elsewhere(shlex.split(given), 7)) == again
