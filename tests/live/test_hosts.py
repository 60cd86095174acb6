"""Commands on several hosts: sums are the programs' own counts, hosts that are lost are named, nothing stays there."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from anyprobe.cli import main
from anyprobe.cli.commands.schema import text_of
from support.driver import build, wait_until
from support.ssh_servers import SSHD, fleet, with_anyprobe

pytest.importorskip("asyncssh", reason="asyncssh is optional, not installed")
pytestmark = [pytest.mark.live, pytest.mark.skipif(SSHD is None, reason="needs sshd")]

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((noinline)) long step(long n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
int main(int argc, char **argv) {
    long sum = 0;
    while (sum < atol(getenv("CALLS"))) sum = step(sum);
    printf("%ld calls\\n", sum);
    fflush(stdout);
    while (argc > 1) { step(1); usleep(1000); }
}
"""
CALLS = {"one": 100, "two": 20_000, "three": 7}
LATE = '#!/bin/sh\nexec /usr/bin/date -d "+1 hour" "$@"\n'


@pytest.fixture(scope="module")
def program():
    return build("work_on_hosts.c", "-O1", text=PROGRAM)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Three hosts, of which one's clock is an hour ahead; one without anyprobe, and one that takes no key."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "bin").mkdir()
    (folder / "bin/date").write_text(LATE)
    (folder / "bin/date").chmod(0o755)
    variables = {name: with_anyprobe(CALLS=calls, FLEET=folder) for name, calls in CALLS.items()}
    variables["three"]["PATH"] = f"{folder}/bin:{variables['three']['PATH']}"
    settings = {name: {"variables": each} for name, each in variables.items()}
    settings["bare"] = {"variables": {"PATH": "/usr/bin:/bin", "FLEET": folder}}
    own = {"XDG_CACHE_HOME": folder / "cache", "CALLS": 5, "FLEET": folder}
    settings["new"] = {"variables": {"PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin", **own}}
    settings["closed"] = {"variables": variables["one"], "keys": "no_keys"}
    with fleet(folder, settings) as found:
        yield found
        assert not left(found)


def command(*arguments):
    return [sys.executable, "-m", "anyprobe", *map(str, arguments)]


def run(hosts, *arguments, status=0):
    done = subprocess.run(
        command(*arguments), env=hosts.environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, done.stderr
    return done


def left(hosts, **variables):
    """Return the processes of commands on hosts, or on those that have these variables."""
    marks = {f"{name}={value}".encode() for name, value in {"FLEET": hosts.folder, **variables}.items()}
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if marks <= set((each / "environ").read_bytes().split(b"\0")):
                found.append(each.name)
        except OSError:  # it has ended
            continue
    return found


def own_counts(text):
    """Return what the program has printed on each host."""
    return {name: int(calls) for name, calls in re.findall(r"^(\w+): (\d+) calls$", text, re.MULTILINE)}


def counted(document, function="step"):
    return {each["function"]: each["hits"] for each in document["sites"]}[function]


def test_counts_of_each_host_and_their_sum_are_the_programs_own(hosts, program):
    done = run(hosts, "count", "a.out:step", "a.out:main", "-H", "one,two", "-H", "three", "--json", "--", program)
    document = json.loads(done.stdout)
    jsonschema.validate(document, json.loads(text_of("count")))
    assert own_counts(done.stderr) == CALLS
    assert {each["host"]: counted(each["results"]) for each in document["hosts"]} == CALLS
    assert counted(document) == sum(CALLS.values())
    assert counted(document, "main") == 3
    assert [each["lost"] for each in document["hosts"]] == [None] * 3
    true = {"one": 0, "two": 0, "three": 3600}
    for each in document["hosts"]:
        assert abs(each["clock_offset_s"] - true[each["host"]]) <= each["clock_error_s"]


def test_times_and_values_are_summed_and_kept(hosts, program, tmp_path, capsys):
    (tmp_path / "hosts").write_text("# those of the test\none\n\ntwo  # the second\none\n")
    kept = tmp_path / "all.aprobe"
    run(hosts, "time", "a.out:step", "--hosts", tmp_path / "hosts", "-o", kept, "--", program)
    assert main(["show", str(kept), "--json"]) == 0
    (timed,) = json.loads(capsys.readouterr().out)["functions"]
    assert timed["count"] == CALLS["one"] + CALLS["two"]
    assert sum(number for *_, number in timed["buckets"]) == timed["count"]
    of = ("hist", "a.out:step", "--of", "arg0", "-H", "one,two", "--json", "--", program)
    (values,) = json.loads(run(hosts, *of).stdout)["aggregations"].values()
    assert (values["count"], values["sum"]) == (20_100, sum(map(sum, (range(100), range(20_000)))))


def test_lost_hosts_are_named_and_in_no_sum(hosts, program):
    among = "one,bare,closed,nowhere.invalid,127.0.0.1:1"
    done = run(hosts, "count", "a.out:step", "-H", among, "--", program, status=1)
    for name, why in {
        "bare": "no anyprobe there; --remote COMMAND says how it is called",
        "closed": "permission denied",
        "nowhere.invalid": "",
        "127.0.0.1:1": "",
    }.items():
        assert f"anyprobe: {name}: {why}" in done.stderr
    assert "=== sum of 1 of 5 hosts, without bare, closed, nowhere.invalid, 127.0.0.1:1\n" in done.stdout
    assert "Traceback" not in done.stderr
    at = Path(sys.executable).parent / "anyprobe"
    done = run(hosts, "count", "a.out:step", "-H", "bare", "--remote", f"CALLS=5 {at}", "--json", "--", program)
    assert counted(json.loads(done.stdout)) == 5


def calls_are(number):
    """Return the option by which the program makes so many calls on each host."""
    return "--remote", f"CALLS={number} {Path(sys.executable).parent / 'anyprobe'}"


def test_samples_of_hosts_add_up_stack_by_stack(hosts, program):
    done = run(hosts, "profile", "-H", "one,two", *calls_are(100_000_000), "--json", "--", program)
    document = json.loads(done.stdout)
    jsonschema.validate(document, json.loads(text_of("profile")))
    assert own_counts(done.stderr) == {"one": 100_000_000, "two": 100_000_000}
    parts = [each["results"] for each in document["hosts"]]
    assert document["samples"] == sum(each["samples"] for each in parts) > 10

    def stacks(of):
        return Counter({tuple(each["frames"]): each["count"] for each in of["stacks"]})

    assert stacks(document) == stacks(parts[0]) + stacks(parts[1])
    done = run(hosts, "profile", "-H", "one,bare", *calls_are(30_000_000), "--", program, status=0)
    assert "=== sum of 2 of 2 hosts\n" in done.stdout


def test_what_has_run_on_any_host_is_covered(hosts, tmp_path):
    chooses = build(
        "chosen_on_hosts.c",
        "-O1",
        text="""
#include <stdlib.h>
__attribute__((noinline)) int many(void) { return 1; }
__attribute__((noinline)) int few(void) { return 2; }
int main(void) { return atol(getenv("CALLS")) > 50 ? many() : few() - 2; }
""",
    )
    done = run(hosts, "cover", "-H", "one,three", "--json", "--", chooses)
    document = json.loads(done.stdout)
    jsonschema.validate(document, json.loads(text_of("cover")))

    def lines(of):
        return {line for each in of["files"] for line, is_run in each["lines"].items() if is_run}

    parts = [lines(each["results"]) for each in document["hosts"]]
    assert parts[0] != parts[1]
    assert lines(document) == parts[0] | parts[1]
    assert main(["cover", "-H", "one", "--annotate", "x.c", "--", str(chooses)]) == 2
    assert main(["cover", "merge", "x.json", "-H", "one"]) == 2


def test_lines_of_a_trace_have_their_hosts(hosts, program):
    given = ("a.out:step", "-H", "one,three", "-c", "5")
    done = run(hosts, "trace", *given, "--json", "--", program)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for each in found:
        jsonschema.validate(each, json.loads(text_of("trace")))
    for host in ("one", "three"):
        assert [each["args"]["n"] for each in found if each["host"] == host] == [*range(5)]
    assert "three: its clock is 3,600" in done.stderr
    done = run(hosts, "trace", *given, "--", program)
    lines = done.stdout.splitlines()
    assert len([line for line in lines if "work_on_hosts:step(n=" in line]) == 10
    assert {line[:6] for line in lines} == {"one   ", "three "}, lines
    done = run(hosts, "trace", *given[:2], "one,bare", "-c", "1", "--", program, status=1)
    assert "bare: no anyprobe there" in done.stderr
    done = run(hosts, "trace", "a.out:stepp", "-H", "one", "--", program, status=2)


def test_each_host_has_a_recording_of_its_own(hosts, program, tmp_path, capsys):
    kept = tmp_path / "run.aprobe"
    done = run(hosts, "record", "a.out:step", "-H", "one,three", "--with", "n, retval", "-o", kept, "--", program)
    assert "three: " in done.stderr
    assert "its clock is 3,600" in done.stderr
    for host in ("one", "three"):
        assert main(["replay", str(tmp_path / f"run.{host}.aprobe"), "--json"]) == 0
        values = [json.loads(line)["values"] for line in capsys.readouterr().out.splitlines()]
        assert values == [{"n": n, "retval": n + 1} for n in range(CALLS[host])]
    assert main(["record", "a.out:step", "-H", "one", "-o", "x.json", "--", str(program)]) == 2
    assert main(["record", "a.out:step", "-H", "one", "-o", "x.aprobe", "--last", "1s", "--dump-when",
                 "latency_ns > 5", "--", str(program)]) == 2  # fmt: skip


def test_an_anyprobe_is_sent_once_and_changes_nothing_for_the_command(hosts):
    asks = build("asks_on_hosts.c", "-O1", text="""
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) void step(void) { __asm__ volatile(""); }
int main(void) { step(); printf("%s\\n", getenv("PYTHONPATH") ? "set" : "none"); return 0; }
""")  # fmt: skip
    given = ("count", "a.out:step", "-H", "new", "--send", "--json", "--", asks)
    done = run(hosts, *given)
    assert re.search(r"^new: anyprobe was sent, \d+ MB$", done.stderr, re.MULTILINE)
    assert "new: none" in done.stderr
    assert counted(json.loads(done.stdout)) == 1
    done = run(hosts, "count", "a.out:step", "-H", "new", "--send", "--json", "--", asks)
    assert "was sent" not in done.stderr
    assert counted(json.loads(done.stdout)) == 1
    (kept,) = (hosts.folder / "cache/anyprobe/sent").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    assert main(["count", "a.out:step", "--send", "--", "true"]) == 2
    assert main(["count", "a.out:step", "-H", "new", "--send", "--remote", "x", "--", "true"]) == 2


def test_what_is_wrong_everywhere_is_a_usage_error(hosts, program):
    done = run(hosts, "count", "a.out:stepp", "-H", "one,two", "--", program, status=2)
    assert "one: anyprobe: " in done.stderr
    assert not done.stdout


@pytest.fixture
def endless(hosts, program):
    """A command on two hosts that ends by itself on neither; its programs run."""
    begun = command("count", "a.out:step", "-H", "one,two", "--json", "--", program, "on")
    with subprocess.Popen(
        begun, env=hosts.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            said = ""
            while own_counts(said) != {name: CALLS[name] for name in ("one", "two")}:
                line = running.stderr.readline()
                assert line, said
                said += line
            yield running
        finally:
            running.kill()
            wait_until(lambda: not left(hosts), "nothing runs on the hosts")


def test_ctrl_c_gives_the_results_so_far_and_ends_all(hosts, endless):
    endless.send_signal(signal.SIGINT)
    printed, told = endless.communicate(timeout=60)
    assert endless.returncode == 130, told
    document = json.loads(printed)
    each = [counted(host["results"]) for host in document["hosts"]]
    assert counted(document) == sum(each) > CALLS["one"] + CALLS["two"]
    wait_until(lambda: not left(hosts), "nothing runs on the hosts")


def test_a_connection_that_dies_is_a_lost_host(hosts, endless):
    for pid in hosts.connections("two"):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not left(hosts, CALLS=CALLS["two"]), "what ran there has ended by itself")
    endless.send_signal(signal.SIGINT)
    printed, told = endless.communicate(timeout=60)
    assert endless.returncode == 1
    assert "anyprobe: two: the connection was lost" in told
    document = json.loads(printed)
    lost = {host["host"]: host["lost"] for host in document["hosts"]}
    assert lost["one"] is None
    assert lost["two"].startswith("the connection was lost")
    assert counted(document) == counted(document["hosts"][0]["results"]) > CALLS["one"]
    assert document["warnings"][0].startswith("missing in this sum: two (the connection was lost")
    wait_until(lambda: not left(hosts), "nothing runs on the hosts")


def test_a_client_that_is_killed_leaves_nothing_on_hosts(hosts, endless):
    endless.kill()
    wait_until(lambda: not left(hosts), "nothing runs on the hosts")
