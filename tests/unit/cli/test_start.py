"""The command line as a program: it starts fast and says what it can do."""

import resource
import subprocess
import sys

import pytest

from anyprobe.cli import COMMANDS

HEAVY = ("numpy", "iced_x86", "rich")


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "anyprobe", *arguments], capture_output=True, text=True, timeout=180)


def test_help_names_every_command():
    shown = run("--help")
    assert shown.returncode == 0
    assert all(f"  {name} " in shown.stdout for name in COMMANDS)


def test_help_starts_in_a_fifth_of_a_second():
    # Processor time, the least of several: the machine may be busy with other tests.
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) <= 0.2, spent


def test_help_imports_nothing_heavy():
    program = (
        "import sys, anyprobe.cli; anyprobe.cli.main(['--help']); print([n for n in sys.argv[1:] if n in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program, *HEAVY], capture_output=True, text=True, timeout=180)
    assert shown.stdout.splitlines()[-1] == "[]"


def test_every_command_has_help():
    for name in COMMANDS:
        shown = run(name, "--help")
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith(f"Usage: anyprobe {name}")


def test_no_command_is_a_usage_error():
    assert run().returncode == 2


def test_a_reader_that_has_seen_enough_is_no_error():
    pipeline = f"'{sys.executable}' -m anyprobe doctor | true; echo ${{PIPESTATUS[0]}}"
    shown = subprocess.run(["bash", "-c", pipeline], capture_output=True, text=True, timeout=180)
    assert "Traceback" not in shown.stderr
    assert "BrokenPipe" not in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("count", "f", "-p", "redis"), "'redis' is not a valid process id (-n takes names)\n"),
        (("count", "f", "-p", "0"), "0 is not in the range x>=1\n"),
        (("count", "f", "-p", "1", "--for", "soon"), "'soon' is not a valid number of seconds\n"),
        (("count", "f", "-p", "1", "--max-overhead", "2%"), "'2%' is not a valid percentage\n"),
        (("count", "f", "-p", "1", "--top", "all"), "'all' is not a valid number\n"),
        (("trace", "f", "-p", "1", "--args", "x"), "'x' is not a valid number\n"),
    ],
)
def test_a_number_that_cannot_be_read_is_called_by_what_it_counts(arguments, message):
    ended = run(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
