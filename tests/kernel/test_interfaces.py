"""The kernel's own lists and switches, as the command line shows and sets them."""

import json
import os
import signal
import subprocess
import sys

import jsonschema
import pytest

import anyprobe
from anyprobe.cli import main
from anyprobe.cli.commands.schema import text_of
from anyprobe.target.kernel import switches, symbols, tracefs
from anyprobe.target.kernel.switches import ARMED, OPTIMIZATION

TRACING = "/sys/kernel/tracing"


@pytest.fixture
def run(capsys):
    """Return what runs a command and returns its output."""

    def run(*arguments):
        capsys.readouterr()
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def document(run):
    """Return what runs a command, and returns its document once it is as its schema says."""

    def document(*arguments):
        found = json.loads(run(*arguments, "--json"))
        jsonschema.validate(found, json.loads(text_of(arguments[0])))
        return found

    return document


@pytest.fixture
def event():
    """Define an event in tracefs, and enable it."""
    write("kprobe_events", "p:opens do_sys_openat2")
    write("events/kprobes/opens/enable", "1")
    yield "kprobes/opens"
    write("events/kprobes/opens/enable", "0")
    write("kprobe_events", "-:opens")


def write(name, text):
    file = os.open(f"{TRACING}/{name}", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def test_what_probes_the_kernel_and_whose_it_is(document, run, event):
    with anyprobe.kernel() as session:
        session.count("kprobe:vfs_read", "kretprobe:vfs_read", "fentry:vfs_write", "rawtracepoint:sched_switch")
        found = document("probes", "--kernel")
        text = run("probes", "--kernel")
    by_place = {(each["symbol"], each["type"]): each for each in found["kprobes"]}
    for kind in ("k", "r"):
        (owner,) = by_place["vfs_read", kind]["owners"]
        assert owner["pids"] == [os.getpid()]
        assert "FTRACE" in by_place["vfs_read", kind]["flags"]
    assert [owner["name"] for owner in by_place["do_sys_openat2", "k"]["owners"]] == [f"event {event}"]
    places = {
        (place["mechanism"], place["at"].partition("+")[0]) for each in found["programs"] for place in each["places"]
    }
    assert {("kprobe", "vfs_read"), ("kretprobe", "vfs_read"), ("fentry", "vfs_write")} <= places
    assert ("raw_tp", "sched_switch") in places
    assert all(os.getpid() in [one["pid"] for one in each["holders"]] for each in found["programs"])
    ((hits, enabled),) = [(each["hits"], each["enabled"]) for each in found["events"] if each["name"] == event]
    assert hits > 0
    assert enabled
    assert f"event {event}" in text
    assert f" {os.getpid()})" in text


def test_nothing_probes_the_kernel(document):
    found = document("probes", "--kernel")
    assert (found["kprobes"], found["programs"], found["events"]) == ([], [], [])
    assert found["armed"] is True


def test_disarmed_kprobes_count_nothing(run, document):
    with anyprobe.kernel() as session:
        (probe,) = session.count("kprobe:__x64_sys_getppid")

        def hits():
            before = sum(site.hits for site in probe.results())
            for _ in range(10):
                os.getppid()
            return sum(site.hits for site in probe.results()) - before

        assert hits() == 10
        assert "disarmed" in run("disable", "--kernel", "--all")
        assert hits() == 0
        assert document("disable", "--kernel", "--all") == {
            "kernel": True, "enabled": False, "before": False, "restored": False,
        }  # fmt: skip
        assert "armed" in run("enable", "--kernel", "--all")
        assert hits() == 10


@pytest.mark.thorough
def test_function_that_ftrace_cannot_trace_is_refused_by_name():
    known = tracefs.Traceable()
    forbidden = [(low, high) for low, high, _ in tracefs.blacklist()]
    for name in ("sched_clock_cpu", "native_sched_clock", "mcount", "ftrace_stub", "do_int3", "__switch_to_asm"):
        for function in symbols.running().named(name):
            listed = any(low <= function.address < high for low, high in forbidden)
            if known.has(function.address, [name]) is False and not listed:
                with anyprobe.kernel() as session:
                    session.count(f"fentry:{name}")
                    ((_, why),) = session.refused
                assert why.reason is anyprobe.Reason.NOT_TRACEABLE
                assert name in why.detail
                return
    pytest.skip("all of them can be traced here, or are on the blacklist")


@pytest.mark.thorough
@pytest.mark.parametrize("switch", [ARMED, OPTIMIZATION])
def test_switch_is_given_back_after_a_while(document, switch):
    arguments = ("disable", "--all") if switch is ARMED else ("optimize", "off")
    found = document(*arguments, "--kernel", "--for", "0.1")
    assert found["before"] is True
    assert found["restored"] is True
    assert switch.read()


@pytest.mark.thorough
def test_switch_is_given_back_at_ctrl_c():
    command = [sys.executable, "-m", "anyprobe", "disable", "--kernel", "--all", "--for", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert "disarmed" in child.stdout.readline()
        assert switches.ARMED.read() is False
        child.send_signal(signal.SIGINT)
        assert "armed again" in child.stdout.read()
    assert child.returncode == 130
    assert switches.ARMED.read() is True


def test_optimization_is_switched_off_and_on(run):
    assert "traps" in run("optimize", "off", "--kernel")
    assert OPTIMIZATION.read() is False
    assert "jumps" in run("optimize", "on", "--kernel")
    assert OPTIMIZATION.read() is True
