"""Coverage of the guest's kernel: as the kernel's own kprobes and its function tracer count the same work."""

import fcntl
import json
import os
import subprocess
import threading
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest

import anyprobe
from anyprobe.cli import main
from anyprobe.cli.commands.schema import text_of
from anyprobe.target.kernel import symbols

TRACING = Path("/sys/kernel/tracing")
FUNCTIONS, SOME = "kernel:vmlinux:pipe_*", "kernel:vmlinux:pipe_[rw]*"


def work():
    """Use pipes in ways of which each goes through other blocks, the same ones whenever it is called."""
    for size in (1, 4096, 9000):
        reading, writing = os.pipe2(os.O_NONBLOCK)
        assert os.write(writing, b"x" * size) == size
        assert os.write(writing, b"y") == 1
        assert len(os.read(reading, 65536)) == size + 1
        with suppress(BlockingIOError):
            os.read(reading, 1)
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, b"z" * 1000)
        os.close(reading)
        with suppress(BrokenPipeError):
            os.write(writing, b"x")
        os.close(writing)


def hits_of(coverage):
    """Return how often blocks have run, by function and offset; None of those of which that is not known."""
    functions = [each for module in coverage.modules for each in module.functions]
    return {(each.name, at): hits for each in functions for at, hits in each.blocks.items()}


@pytest.fixture(scope="module")
def by_kprobes():
    """Return how often the kernel's own kprobes are hit at blocks, where it takes one."""
    with anyprobe.kernel(mechanism="kprobe", pids=[os.getpid()]) as session:
        session.count(f"{SOME}:block")
        work()
        sites = session.snapshot().sites
        assert not any(each.nmissed for each in sites)
        return {(each.function, each.offset): each.hits for each in sites}


@pytest.mark.usefixtures("loaded")
def test_blocks_are_those_of_kprobes(by_kprobes):
    with anyprobe.kernel(pids=[os.getpid()]) as session:
        session.cover(SOME)
        work()
        snapshot = session.snapshot()
    found = hits_of(snapshot.coverage)
    both = {key: hits for key, hits in found.items() if hits is not None and key in by_kprobes}
    assert both == {key: by_kprobes[key] for key in both}
    assert len(both) > 0.9 * len(found) > 50
    assert {hits > 0 for hits in both.values()} == {True, False}
    (module,) = snapshot.coverage.modules
    assert module.name == "vmlinux"
    assert bytes.fromhex(module.build_id) in Path("/sys/kernel/notes").read_bytes()
    for each in module.functions:
        ends = sorted((at, at + size) for at, size in each.sizes.items())
        assert all(end <= after for (_, end), (after, _) in pairwise(ends))
    refused = {spec for spec, _ in session.refused}
    assert sum(hits is None for hits in found.values()) == len(refused)


def traced(names):
    """Return how often the kernel's function tracer sees functions in this process."""
    tracer, chosen, pid = (TRACING / name for name in ("current_tracer", "set_ftrace_filter", "set_ftrace_pid"))
    chosen.write_text("\n".join(names))
    pid.write_text(str(os.getpid()))
    try:
        tracer.write_text("function")
        work()
        lines = (TRACING / "trace").read_text().splitlines()
    finally:
        tracer.write_text("nop")
        pid.write_text("")
        chosen.write_text("")
    return Counter(line.split(": ", 1)[1].split(" <-")[0] for line in lines if " <-" in line)


@pytest.mark.parametrize("mechanism", ["fentry", "kprobe"])
def test_functions_are_those_of_the_function_tracer(mechanism):
    with anyprobe.kernel(mechanism=mechanism, pids=[os.getpid()]) as session:
        session.cover(FUNCTIONS)
        work()
        snapshot = session.snapshot()
        names = {each.function for each in snapshot.sites}
    seen = traced(sorted(names))
    (module,) = snapshot.coverage.modules
    entered = {each.name: each.hits for each in module.functions if each.name in names}
    assert len(seen) >= 5
    assert entered == {name: seen[name] for name in names}
    inner = [hits for each in module.functions for at, hits in each.blocks.items() if at != min(each.blocks)]
    assert len(inner) > 50
    assert set(inner) == {None}
    assert any("not which of their blocks" in each for each in snapshot.warnings)


@pytest.mark.thorough
@pytest.mark.usefixtures("loaded")
def test_a_module_and_the_sum_of_two_loadings_of_it():
    """Which lies elsewhere each time: functions are told by where they are in its code."""
    found = []
    for times in (3, 4):
        subprocess.run(["modprobe", "loop"], check=True)
        try:
            with anyprobe.kernel() as session:
                session.cover("kernel:loop:*")
                with open("/dev/loop-control", "rb", buffering=0) as file:
                    for _ in range(times):
                        fcntl.ioctl(file, 0x4C82)
                found.append(session.snapshot().coverage)
        finally:
            subprocess.run(["modprobe", "-r", "loop"], check=True)
    (module,) = (found[0] + found[1]).modules
    hits = {each.name: each.hits for each in module.functions}
    assert hits["loop_control_ioctl"] == 7
    assert len(hits) == len(found[0].modules[0].functions) > 20
    assert module.blocks.covered > 3
    assert 0 in hits.values()


@pytest.mark.thorough
@pytest.mark.usefixtures("loaded")
def test_the_command_and_its_document(tmp_path):
    file, stop = tmp_path / "document", threading.Event()
    worker = threading.Thread(target=lambda: [work() for _ in iter(stop.is_set, True)])
    worker.start()
    try:
        command = ["cover", "--kernel", "vmlinux:pipe_[rw]*", "-p", str(os.getpid()), "--for", "1"]
        assert main([*command, "--fail-under", "99.9", "--json", "-o", str(file)]) == 1
    finally:
        stop.set()
        worker.join()
    document = json.loads(file.read_text())
    jsonschema.Draft202012Validator(json.loads(text_of("cover"))).validate(document)
    (module,) = document["modules"]
    assert module["module"] == "vmlinux"
    by_name = {each["function"]: each["start"] for each in module["symbols"]}
    running = {each.name: each.address for each in symbols.running().matching("pipe_[rw]*", "vmlinux")}
    assert len({running[name] - start for name, start in by_name.items()}) == 1
    assert module["counted"]
    assert module["blocks"]["covered"] > 20
