"""USDT markers of real programs: PostgreSQL under pgbench, a JVM's collector, CPython, C++ exceptions."""

import json
import re
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import anyprobe
from anyprobe import Count, cstr
from anyprobe.usdt.header import header
from anyprobe.usdt.providerfile import parse_provider_file
from support.asked_controller import Controller
from support.driver import PATIENCE, build, started, wait_until
from support.markers import semaphores
from support.postgres import CLIENTS, EACH, POSTGRES, STATEMENT, command, postgres
from support.results import counts

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def database():
    with postgres() as server:
        yield server


def values_of(pid):
    """Return the semaphores of the server in a process that are not zero."""
    return {name: value for name, value in semaphores(pid, POSTGRES / "postgres").items() if value}


def values_of_all(database):
    """Return the same of the server and its backends, where there are any; a client's backend may be ending."""
    found = {}
    for pid in database.backends():
        with suppress(OSError, ValueError):
            found[pid] = values_of(pid)
    return {pid: values for pid, values in found.items() if values}


def test_the_statements_of_postgresql_are_counted_to_the_unit(database):
    queries = Count("queries", by=("text",))
    before = database.statements()
    with anyprobe.attach(database.pid) as session:

        @session.entry("usdt:postgresql:query__start")
        def on_query(query: cstr):
            queries.add(key=(query,))

        session.count("usdt:postgres:query__start", "usdt:postgresql:query-done", "sdt_postgresql:query__parse__start")
        assert all(set(values_of(pid).values()) == {1} and len(values_of(pid)) == 3 for pid in [database.pid])
        assert database.pgbench() == CLIENTS * EACH
        snapshot = session.snapshot()
    found = {}
    for site in snapshot.distinct().sites:
        found[site.label] = found.get(site.label, 0) + site.hits
    statements = database.statements() - before
    assert statements >= CLIENTS * EACH
    assert found["postgresql:query-start"] == found["postgresql:query-parse-start"] == statements
    assert found["postgresql:query-done"] == statements
    assert counts(queries)[STATEMENT,] == CLIENTS * EACH
    assert values_of_all(database) == {}


def test_semaphores_of_the_server_and_its_backends_are_down_after_sigkill_and_detach(database):
    controller = Controller()
    try:
        controller.ask("hold", database.pid, "usdt:postgresql:*")
        assert set(values_of(database.pid).values()) == {1}
        with ExitStack() as stack:
            # a backend that is forked with the semaphores up, and lives on
            psql = command("psql", "-h", database.directory, "postgres")
            client = stack.enter_context(
                subprocess.Popen(psql, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd="/")
            )
            stack.callback(client.stdin.close)
            wait_until(lambda: values_of_all(database).keys() - {database.pid}, "a backend is there")
            controller.ask("drop")
            assert controller.ask("cli", "detach", "-p", database.pid)["exit"] == 0
            assert values_of_all(database) == {}
        assert database.pgbench() == CLIENTS * EACH
    finally:
        controller.close()


def test_every_marker_of_postgresql_can_be_placed_at_once(database):
    with anyprobe.attach(database.pid) as session:
        session.count("usdt:postgresql:*")
        assert not session.refused
        assert database.pgbench() == CLIENTS * EACH
        hits = {site.label: site.hits for site in session.snapshot().folded().sites}
        assert hits["postgresql:transaction-start"] >= CLIENTS * EACH
        assert len(hits) > 50


COLLECT = """
public class Collect {
    public static void main(String[] words) throws Exception {
        System.out.println("ready"); System.in.read();
        for (int n = 0; n < 20; n++) System.gc();
        System.out.println("done"); System.in.read();
    }
}
"""


def test_the_collections_of_a_jvm_are_those_of_its_log(tmp_path):
    java = Path("/usr/lib/jvm/java-17-openjdk-amd64/bin/java")
    if not java.exists():
        pytest.skip("OpenJDK 17 is not installed")
    (tmp_path / "Collect.java").write_text(COLLECT)
    log = tmp_path / "gc.log"
    command = [java, "-XX:+UseSerialGC", "-Xmx64m", f"-Xlog:gc:file={log}", tmp_path / "Collect.java"]
    pipe = subprocess.PIPE
    with subprocess.Popen([str(each) for each in command], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            before = len(re.findall(r"GC\(\d+\) Pause", log.read_text()))
            full = Count("full", by=("full",))
            with anyprobe.attach(process.pid) as session:
                session.count("usdt:libjvm/hotspot:gc__begin", "usdt:hotspot:gc-end")

                @session.entry("usdt:hotspot:gc__begin")
                def on_begin(is_full: bool):
                    full.add(key=(is_full,))

                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "done\n"
                hits = {site.label: site.hits for site in session.snapshot().distinct().folded().sites}
            wait_until(lambda: len(re.findall(r"GC\(\d+\) Pause", log.read_text())) >= before + 20, "the log is whole")
            logged = len(re.findall(r"GC\(\d+\) Pause", log.read_text())) - before
            assert hits["hotspot:gc-begin"] == hits["hotspot:gc-end"] == logged
            assert counts(full)[True,] == 20
        finally:
            process.kill()


def test_a_provider_of_a_library_that_comes_later_is_waited_for(tmp_path):
    """As a JVM that is started: its launcher has no markers, and loads ``libjvm``, which has."""
    probes = header(parse_provider_file("provider later { probe begun(int); };", "later.d"), "later.d")
    begin = "__attribute__((constructor)) static void begin(void) { LATER_BEGUN(1); }\n"
    library = build("later.c", "-shared", "-fPIC", text=probes + begin)
    program = build(
        "loads.c", "-ldl", text=f'#include <dlfcn.h>\nint main(void) {{ return !dlopen("{library}", RTLD_NOW); }}\n'
    )
    for spec, hits in [("usdt:later:begun", 1), ("usdt:later/later:begun", 1), ("usdt:latter:begun", 0)]:
        results = tmp_path / "results"
        command = [sys.executable, "-m", "anyprobe", "count", spec, "--json", "-o", results, "--", str(program)]
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert outcome.returncode == 0, outcome.stderr
        document = json.loads(results.read_text())
        assert sum(site["hits"] for site in document["sites"]) == hits
        assert document.get("pending", []) == ([] if hits else [{"spec": spec, "module": "latter"}])


def test_exceptions_are_thrown_and_caught_as_often_as_the_library_says():
    source = """
        #include "protocol.h"
        static void one_round(void) { try { throw 7; } catch (int n) { check(n == 7, "caught"); } }
        static void setup(int argc, char **argv) { (void)argc; (void)argv; }
    """
    with started(build("throws.cpp", text=source)) as target, anyprobe.attach(target.pid) as session:
        session.count("usdt:libstdcxx:throw", "usdt:libstdcxx:catch")
        target.go(100)
        assert {site.label: site.hits for site in session.snapshot().sites} == {
            "libstdcxx:throw": 100,
            "libstdcxx:catch": 100,
        }


def test_the_collections_of_cpython():
    python = "/usr/bin/python3.11"
    if not Path(python).exists() or b".note.stapsdt" not in Path(python).read_bytes():
        pytest.skip("no python3.11 with markers")
    program = "import gc, sys\nprint('ready', flush=True)\nsys.stdin.readline()\n" + "gc.collect()\n" * 25
    program += "print('done', flush=True)\nsys.stdin.readline()\n"
    pipe = subprocess.PIPE
    with subprocess.Popen([python, "-c", program], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            generations = Count("generations", by=("generation",))
            with anyprobe.attach(process.pid) as session:

                @session.entry("usdt:python:gc__start")
                def on_start(generation):
                    generations.add(key=(generation,))

                session.count("usdt:python:gc__done")
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "done\n"
                hits = {site.label: site.hits for site in session.snapshot().sites}
            assert counts(generations)[2,] == 25
            assert hits["python:gc-done"] == hits["python:gc-start"] >= 25
        finally:
            process.kill()


def test_a_started_program_is_counted_from_its_first_instruction_on():
    """In a library that is mapped later, too, with handlers and semaphores."""
    source = """
        #include "markers.h"
        SEMAPHORE(early_guard);
        __attribute__((constructor)) static void early(void) {
            for (int n = 0; n < 3; n++)
                if (*(volatile unsigned short *)&early_guard)
                    MARKER("early", "constructed", "early_guard", "-4@%0", "r"(n));
        }
        int main(void) {
            for (int n = 0; n < 5; n++)
                try { throw n; } catch (int) { }
        }
    """
    numbers, caught = Count("numbers", by=("n",)), Count("caught")
    with anyprobe.run([str(build("starts_marked.cpp", text=source))]) as session:
        session.count("usdt:libstdcxx:throw")

        @session.entry("usdt:early:constructed")
        def on_constructed(n):
            numbers.add(key=(n,))

        @session.entry("usdt:libstdcxx:catch")
        def on_catch(thrown, kind):
            if thrown != 0:
                caught.add()

        assert session.wait(PATIENCE) == 0
        hits = {site.label: site.hits for site in session.snapshot().sites}
    assert hits == {"libstdcxx:throw": 5, "libstdcxx:catch": 5, "early:constructed": 3}
    assert (counts(numbers), counts(caught)) == ({(0,): 1, (1,): 1, (2,): 1}, {(): 5})
