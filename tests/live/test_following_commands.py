"""``trace`` and ``script`` follow what is executed, as ``count`` does."""

import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter

import pytest

pytestmark = pytest.mark.live
START = "libc:__libc_start_main"
TREE = "/bin/true; (/bin/false; exec /bin/echo well); exec sh -c '/bin/true; exit 5'"
"""Six programs in five processes: two of them become another program."""
SHELL = os.path.realpath("/bin/sh")
PROGRAMS = Counter({os.path.basename(SHELL): 2, "true": 2, "false": 1, "echo": 1})


def anyprobe(*arguments, status=0):
    command = [sys.executable, "-m", "anyprobe", *map(str, arguments)]
    outcome = subprocess.run(command, timeout=200, check=False, capture_output=True, text=True)
    assert outcome.returncode == status, outcome.stderr
    return outcome


def test_a_trace_has_the_lines_of_each_program(tmp_path):
    """One line for each start of a program, with its process and its arguments, in the order of time."""
    results = tmp_path / "results"
    arguments = ("--print", "argc=i32(arg1)", "--json", "--exit-status", "-o", results, "--quiet")
    outcome = anyprobe("trace", START, *arguments, "--", "sh", "-c", TREE, status=5)
    assert outcome.stdout == "well\n"
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["argc"] for line in lines] == [3, 1, 1, 2, 3, 1]
    assert len({line["pid"] for line in lines}) == 5
    assert lines[0]["pid"] == lines[4]["pid"]
    assert all(line["tid"] == line["pid"] for line in lines)
    assert [line["ts_ns"] for line in lines] == sorted(line["ts_ns"] for line in lines)


def test_a_trace_for_people_tells_processes_apart():
    shown = anyprobe("trace", START, "--print", "argc=i32(arg1)", "--", "sh", "-c", "/bin/true; exec /bin/false")
    lines = [line.split() for line in shown.stderr.splitlines() if "__libc_start_main" in line]
    assert [line[1] for line in lines[1:]] == ["true", "false"]  # the first may be called what it has become
    assert len(lines) == 3
    assert [line[2].count("/") for line in lines[1:]] == [1, 1]
    assert lines[2][2].split("/")[0] == lines[0][2].split("/")[0]


def test_without_following_a_trace_stays_with_the_first_program():
    shown = anyprobe("trace", START, "--json", "--no-follow", "--", "sh", "-c", "/bin/true; /bin/false; exit 0")
    assert len([line for line in shown.stderr.splitlines() if line.startswith("{")]) == 1


def test_a_trace_follows_a_running_process():
    """``-f`` with ``-p``: programs that a shell executes after the attach, and what it becomes itself."""
    loop = "echo ready; while read l && test $l = go; do /bin/true; done; exec /bin/cat"
    with subprocess.Popen(["sh", "-c", loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout.readline() == b"ready\n"
        command = [sys.executable, "-m", "anyprobe", "trace", "-f", START, "--json", "-p", str(shell.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as tracing:
            try:
                while not select.select([tracing.stdout], [], [], 0.2)[0]:
                    shell.stdin.write(b"go\n")
                    shell.stdin.flush()
                shell.stdin.write(b"end\n")
                shell.stdin.flush()
                lines = [json.loads(tracing.stdout.readline())]
                while lines[-1]["pid"] != shell.pid:
                    lines.append(json.loads(tracing.stdout.readline()))
            finally:
                tracing.send_signal(signal.SIGINT)
                rest, _ = tracing.communicate(timeout=180)
                said, _ = shell.communicate(b"said\n", timeout=180)
    assert (tracing.returncode, rest, said) == (130, b"", b"said\n")
    assert shell.pid not in {line["pid"] for line in lines[:-1]}
    assert {line["spec"].split(":")[2] for line in lines} == {"__libc_start_main"}


SCRIPT = """
import sys
from anyprobe import Count, emit, i32, session, u64

starts = Count("starts")
name = session.exe.rpartition("/")[2]

@session.entry("libc:__libc_start_main")
def on_start(main: u64, argc: i32):
    starts.add()
    emit("began", argc=argc)

@session.entry("libc:no_such_function_anywhere")
def never():
    starts.add(1000)

@session.begin
def begins():
    print("begin", name, session.exe.rpartition("/")[2], file=sys.stderr)

@session.end
def ends():
    print("end", name, session.exe.rpartition("/")[2], session.snapshot().aggregations[0].count, file=sys.stderr)
"""


def test_a_script_is_run_for_each_program(tmp_path):
    """Its probes, its functions of the beginning and of the end, its records; counts of one name are added up."""
    script, results = tmp_path / "script.py", tmp_path / "results"
    script.write_text(SCRIPT.replace('@session.entry("libc:no_such_function_anywhere")\ndef never', "def never"))
    outcome = anyprobe("script", script, "--json", "--exit-status", "-o", results, "--", "sh", "-c", TREE, status=5)
    assert outcome.stdout == "well\n"
    document = json.loads(results.read_text())
    assert document["aggregations"]["starts"]["count"] == 6
    assert [each["aggregations"]["starts"]["count"] for each in document["targets"]] == [1] * 6
    assert sorted(each["argc"] for each in document["records"]["began"]) == [1, 1, 1, 2, 3, 3]
    told = [line.split() for line in outcome.stderr.splitlines() if line.startswith(("begin", "end"))]
    assert Counter(line[1] for line in told if line[0] == "begin") == PROGRAMS
    assert Counter(line[1] for line in told if line[0] == "end") == PROGRAMS
    assert all(line[1] == line[2] for line in told)
    assert all(line[3] == "1" for line in told if line[0] == "end")


def test_a_script_may_name_what_a_later_program_lacks(tmp_path):
    """What means nothing in a program that is executed is left out there; in the first one it is an error."""
    script = tmp_path / "script.py"
    script.write_text(
        "from anyprobe import Count, session\n"
        "hits = Count('hits')\n"
        "for spec in ('a.out:*main', 'libc:__libc_start_main'):\n"
        "    session.entry(spec)(lambda: hits.add())\n"
    )
    command = ("--", sys.executable, "-c", "import os; os.execv('/bin/true', ['true'])")
    outcome = anyprobe("script", script, "--json", "--follow", *command)
    document = json.loads(outcome.stderr[outcome.stderr.index("{") :])
    assert document["aggregations"]["hits"]["count"] >= 2
    assert len(document["targets"]) == 2


def test_a_script_that_ends_itself_in_a_later_program_leaves_that_alone(tmp_path):
    """The program runs as it would, without probes, and that is told by name."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom anyprobe import Count, session\n"
        "if session.exe.endswith('true'): sys.exit('not this one')\n"
        "hits = Count('hits')\n"
        "session.entry('libc:__libc_start_main')(lambda: hits.add())\n"
    )
    outcome = anyprobe("script", script, "--", "sh", "-c", "/bin/true; /bin/false; exit 0")
    assert "/bin/true was executed once without probes: the script has ended" in outcome.stderr
