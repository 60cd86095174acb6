"""The commands as programs, on real processes."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anyprobe.target.system import procfs
from support.driver import wait_until
from support.seen_probes import is_probed

CALLS = 1000
PATIENCE = 180.0
BUSY = "import os, time\nprint('ready', flush=True)\nwhile True: os.getppid(); time.sleep(0.0005)"
COUNTED = f"import os\nfor _ in range({CALLS}): os.getppid()\nprint('its own output')"


def anyprobe(*arguments, **settings):
    command = [sys.executable, "-m", "anyprobe", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, **settings)


def start(*arguments):
    command = [sys.executable, "-m", "anyprobe", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def busy():
    """A process that calls getppid a thousand times a second and leaves the processor to the others."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        assert process.poll() is None, "the target died"
        process.kill()


def installed(pid):
    shown = anyprobe("probes", "-p", str(pid), "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def maps(pid):
    return Path(f"/proc/{pid}/maps").read_text()


def wait_until_counted(pid):
    """Wait until the probe is armed in a process, and it has gone on with it."""
    wait_until(lambda: is_probed(pid, "getppid"), "the probe is armed", PATIENCE)
    before = naps_of(pid)
    wait_until(lambda: naps_of(pid) > before + 10, "it goes on", PATIENCE)


def naps_of(pid):
    """Return how often a process has given up its processor."""
    return int(procfs.read_status(pid)["voluntary_ctxt_switches"])


def test_count_for_a_while(busy):
    shown = anyprobe("count", "libc:getppid", "-p", str(busy.pid), "--for", "1", "--json")
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    (site,) = document["sites"]
    assert (site["function"], site["armed"]) == ("getppid", True)
    assert site["hits"] > 0
    assert document["target"]["pid"] == busy.pid
    assert document["pause_us"]["arm"] > 0
    assert installed(busy.pid) == []


def test_a_table_is_plain_text_when_nobody_looks(busy):
    shown = anyprobe("count", "libc:getppid", "-p", str(busy.pid), "--for", "0.1")
    assert shown.returncode == 0, shown.stderr
    assert "getppid" in shown.stdout
    assert "\x1b" not in shown.stdout + shown.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_brings_the_results_and_removes_everything(busy, number):
    controller = start("count", "libc:getppid", "-p", str(busy.pid), "--json")
    wait_until_counted(busy.pid)
    controller.send_signal(number)
    out, err = controller.communicate(timeout=PATIENCE)
    assert controller.returncode == {signal.SIGINT: 130, signal.SIGTERM: 0}[number], err
    assert json.loads(out)["sites"][0]["hits"] > 0
    assert installed(busy.pid) == []


@pytest.mark.parametrize("started", [False, True], ids=["attached", "started"])
def test_a_signal_ends_the_planning_of_very_many_probes(busy, started):
    """It would take half a minute; nothing has been changed when it ends."""
    before = maps(busy.pid)
    target = ["--", sys.executable, "-c", COUNTED] if started else ["-p", str(busy.pid)]
    controller = start("count", "libc:*%insn", *target)
    earlier = processor_seconds_of_children()
    wait_until(lambda: processor_seconds(controller.pid) >= 3, "it plans", 3 * PATIENCE)
    assert controller.poll() is None
    controller.send_signal(signal.SIGINT)
    out, err = controller.communicate(timeout=PATIENCE)
    spent = processor_seconds_of_children() - earlier
    assert controller.returncode == 130, err
    assert "interrupted before these probes were placed" in err
    assert spent < 10
    assert ("its own output" in out) == started
    assert maps(busy.pid) == before


def processor_seconds(pid):
    """Return how much time a process has spent, so that the test is the same on a busy machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processor_seconds_of_children():
    """Return the same of all children that have ended, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_started_command_is_counted_from_its_first_instruction_to_its_end():
    shown = anyprobe("count", "libc:getppid", "--json", "--", sys.executable, "-c", COUNTED)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == "its own output\n"
    document = json.loads(shown.stderr)
    assert document["sites"][0]["hits"] == CALLS
    assert document["target"]["exited"] == 0


def test_time_of_a_started_command(tmp_path):
    path = tmp_path / "results"
    shown = anyprobe("time", "libc:getppid", "--json", "-o", str(path), "--", sys.executable, "-c", COUNTED)
    assert shown.returncode == 0, shown.stderr
    (function,) = json.loads(path.read_text())["functions"]
    assert function["count"] == CALLS
    assert sum(count for _, _, count in function["buckets"]) == CALLS
    assert function["min_ns"] <= function["p50_ns"] <= function["p99_ns"] <= function["max_ns"]
    assert function["min_ns"] * CALLS <= function["sum_ns"] <= function["max_ns"] * CALLS


def test_the_sites_of_timed_functions(compiled, tmp_path):
    """Each function's entry is listed as by ``count``, with its calls, and its exits with it."""
    results, program = tmp_path / "results.json", str(compiled("run_alone.c"))
    assert anyprobe("time", "a.out:plain", "--json", "-o", str(results), "--", program).returncode == 0
    timed = json.loads(results.read_text())
    assert anyprobe("count", "a.out:plain", "--json", "-o", str(results), "--", program).returncode == 0
    (counted,), (site,) = json.loads(results.read_text())["sites"], timed["sites"]
    same = ("spec", "module", "function", "offset", "armed", "hits", "nmissed", "kind")
    assert {name: site[name] for name in same} == {name: counted[name] for name in same}
    assert set(site) == set(counted)
    (function,) = timed["functions"]
    assert site["hits"] == function["count"] + function["tail_exits"] == 7
    assert function["exits"]
    for each in function["exits"]:
        assert each["armed"]
        assert each["strategy"]
        assert each["exit_kind"] in {"ret", "tail"}
        assert each["address"] - each["offset"] == function["address"]


def test_the_status_of_the_command_on_demand():
    program = ("--", sys.executable, "-c", "import sys; sys.exit(7)")
    assert anyprobe("count", "libc:getppid", "--quiet", *program).returncode == 0
    assert anyprobe("count", "libc:getppid", "--quiet", "--exit-status", *program).returncode == 7


def test_what_a_killed_controller_left_is_listed_and_removed(busy):
    controller = start("count", "libc:getppid", "-p", str(busy.pid))
    wait_until_counted(busy.pid)
    controller.kill()
    controller.communicate()
    (site,) = installed(busy.pid)
    assert {"address", "type", "symbol", "offset", "module", "strategy", "flags"} <= set(site)
    assert site["symbol"].endswith("getppid")
    removed = anyprobe("detach", "-p", str(busy.pid))
    assert removed.returncode == 0, removed.stderr
    assert re.search(r"restored \d+ site", removed.stdout)
    assert installed(busy.pid) == []
    assert "memfd:anyprobe" not in maps(busy.pid)


def test_explain_and_list_touch_nothing(busy):
    before = maps(busy.pid)
    explained = anyprobe("explain", "libc:malloc", "-p", str(busy.pid), "--json")
    assert explained.returncode == 0, explained.stderr
    explanation = json.loads(explained.stdout)
    assert any("IA" in line["marks"] for line in explanation["disassembly"])
    assert "chosen" in {verdict["verdict"] for verdict in explanation["verdicts"]}
    listed = anyprobe("list", "libc:mallo[c]", "-p", str(busy.pid))
    assert listed.returncode == 0, listed.stderr
    assert "malloc" in listed.stdout
    assert maps(busy.pid) == before


def test_explain_has_a_line_for_each_instruction(busy):
    explained = anyprobe("explain", "libc:getenv%insn", "-p", str(busy.pid), "--json")
    assert explained.returncode == 0, explained.stderr
    sites = json.loads(explained.stdout)["sites"]
    listed = json.loads(anyprobe("list", "libc:getenv%insn", "-p", str(busy.pid), "--json").stdout)["sites"]
    assert [site["address"] for site in sites] == sorted(site["address"] for site in listed)
    assert {site["verdict"] for site in sites if ":" not in site["verdict"]} == {
        site["strategy"] for site in listed if site["strategy"]
    }


def test_explain_says_why_a_site_is_refused_that_no_strategy_was_tried_for(busy):
    explained = anyprobe("explain", "libc:__restore_rt", "-p", str(busy.pid))
    assert explained.returncode == 0, explained.stderr
    first = explained.stdout.splitlines()[0]
    assert first == "refused: this code must never be displaced (signal-return-trampoline)"
    document = json.loads(anyprobe("explain", "libc:__restore_rt", "-p", str(busy.pid), "--json").stdout)
    assert document["refused"].startswith("signal-return-trampoline: ")


@pytest.mark.parametrize("spec", ["a.out:nothing_like_this", "libc:nothing_like_this"])
def test_a_command_is_not_run_for_a_misspelt_function(spec, tmp_path):
    """In the executable that is known before its first instruction, in a library before anything of it has run."""
    shown = anyprobe("count", spec, "--", "touch", str(tmp_path / "made"))
    assert shown.returncode == 2, shown.stderr
    assert not list(tmp_path.iterdir())


def test_a_misspelt_function_is_pointed_at(busy):
    shown = anyprobe("count", "libc:mallok", "-p", str(busy.pid))
    assert shown.returncode == 2
    lines = shown.stderr.splitlines()
    caret = next(line for line in lines if line.strip(" ^") == "")
    assert lines[lines.index(caret) - 1][caret.index("^") :].startswith("mallok")
    assert "malloc" in lines[-1]


@pytest.mark.parametrize("spec", ["libc:getppid%call", "libc:getppi*%call"])
def test_a_function_that_has_nothing_of_what_is_asked_for_is_pointed_at(busy, spec):
    before = maps(busy.pid)
    shown = anyprobe("count", spec, "-p", str(busy.pid))
    assert shown.returncode == 2
    message, text, caret = shown.stderr.splitlines()
    assert "there is no call in getppid" in message
    assert text[caret.index("^") :] == "call"
    assert maps(busy.pid) == before


def test_doctor_finds_nothing_against_a_process_of_ours(busy):
    shown = anyprobe("doctor", "-p", str(busy.pid), "--json")
    findings = json.loads(shown.stdout)["target"]
    assert all(finding["verdict"] != "no" for finding in findings), findings
