"""Acceptance: real programs with all functions of all their modules counted while they run.

Same results as unprobed; the share of functions by strategy, and the refusals, are printed.
"""

import collections
import gzip
import hashlib
import lzma
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

import anyprobe
from live.driver import Target, wait_until
from live.results import hits

PYTHON = "/usr/bin/python3"
MODULES = (
    *("test_json", "test_struct", "test_zlib", "test_hashlib", "test_re", "test_collections", "test_generators"),
    *("test_exceptions", "test_itertools", "test_bytes", "test_heapq", "test_sort", "test_pickle"),
)
BRIEF = 4
"""How many of the modules ``make test`` runs; ``make torture`` runs all."""


def count_everything(session: "anyprobe.Session", *, exits: bool = False) -> None:
    """Count all functions of all modules, and print how that went."""
    session.count("*:*", *(("*:*%return",) if exits else ()))


def print_shares(name: str, session: "anyprobe.Session") -> None:
    """Print strategies and refusals."""
    snapshot = session.snapshot()
    chosen = collections.Counter(str(s.strategy) for s in snapshot.sites)
    refused = collections.Counter(str(r.reason) for r in snapshot.refused)
    total = sum(chosen.values()) + sum(refused.values())
    share = ", ".join(f"{k} {v} ({100 * v / total:.1f} %)" for k, v in chosen.most_common())
    print(f"{name}: {total} sites: {share}; refused: {dict(refused.most_common())}; hits {snapshot.hits}")


def need(*programs: str) -> None:
    """Skip where a program is missing."""
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"needs {program}")


TEST_RUNNER = """
import sys, unittest
print("ready", flush=True)
sys.stdin.readline()
failed = []
for name in sys.argv[1:]:
    suite = unittest.defaultTestLoader.loadTestsFromName("test." + name)
    result = unittest.TextTestRunner(stream=open("/dev/null", "w")).run(suite)
    print(name, result.testsRun, len(result.failures), len(result.errors), len(result.skipped), flush=True)
print("end", flush=True)
sys.stdin.readline()
"""


def run_python_tests(modules: tuple[str, ...], probed: bool) -> list[str]:
    """Run modules of CPython's own tests and return a line of outcome for each."""
    with subprocess.Popen(
        [PYTHON, "-c", TEST_RUNNER, *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ, PYTHONHASHSEED="0"),
    ) as process:
        assert process.stdout.readline() == "ready\n"
        session = anyprobe.attach(process.pid) if probed else None
        if session:
            count_everything(session)
        process.stdin.write("go\n")
        process.stdin.flush()
        lines = []
        for line in process.stdout:
            if line == "end\n":
                break
            lines.append(line)
        if session:
            print_shares("python3 -m test", session)
            session.detach()
        process.stdin.write("end\n")
        process.stdin.flush()
        process.stdin.close()
        process.stdin = None
        assert process.wait(60) == 0
    return lines


def test_cpythons_own_tests(request):
    """Modules of ``python3 -m test``: as many tests run, fail and are skipped as without probes."""
    if subprocess.run([PYTHON, "-c", "import test.test_json"], capture_output=True).returncode:
        pytest.skip("needs CPython's test suite (Debian: libpython3.11-testsuite)")
    modules = MODULES if request.config.getoption("--torture") else MODULES[:BRIEF]
    assert run_python_tests(modules, probed=True) == run_python_tests(modules, probed=False)


WORK = """
import gzip, hashlib, json, lzma, re, sys, zlib
def work(n):
    h = hashlib.sha256()
    for i in range(n):
        d = {"i": i, "l": list(range(i % 50)), "s": "x" * (i % 97), "f": i / 7}
        s = json.dumps(d, sort_keys=True)
        assert json.loads(s) == d
        z = zlib.compress(s.encode() * 5)
        assert zlib.decompress(z) == s.encode() * 5
        try:
            int("x%d" % i)
        except ValueError as e:
            s += str(e)
        h.update(re.sub(r"[0-9]+", lambda m: m.group() * 2, s).encode() + bytes(sorted(z)))
    return h.hexdigest()
print("ready", flush=True)
for line in sys.stdin:
    print(work(int(line)), flush=True)
"""


def test_python_with_entries_and_exits_counted():
    """A script of JSON, hashing, compression and regular expressions gives the same digest, before, during, after."""
    with subprocess.Popen([PYTHON, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def work() -> str:
            process.stdin.write("400\n")
            process.stdin.flush()
            return process.stdout.readline()

        assert process.stdout.readline() == "ready\n"
        expected = work()
        with anyprobe.attach(process.pid) as session:
            count_everything(session, exits=True)
            assert work() == expected
            print_shares("python3, entries and exits", session)
            assert session.snapshot().hits > 100_000
        assert work() == expected
        process.stdin.close()
        process.stdin = None
        assert process.wait(30) == 0


@pytest.mark.parametrize("exits", [False, True], ids=["entries", "entries-and-exits"])
@pytest.mark.parametrize("tool", ["gzip", "xz"])
def test_compression_round_trip(tool, exits):
    """Output identical to the unprobed one, and to what Python's own library makes of it."""
    need(tool)
    piece = b"".join(hashlib.sha256(str(i).encode()).digest() + b"text that repeats " * 8 for i in range(20_000))
    expected = subprocess.run([tool, "-c"], input=piece, stdout=subprocess.PIPE, check=True).stdout
    for command, given, wanted in (((tool, "-c"), piece, expected), ((tool, "-dc"), expected, piece)):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            wait_until(lambda pid=process.pid: reads_input(pid), "the tool reads its input")
            with anyprobe.attach(process.pid) as session:
                count_everything(session, exits=exits)
                output, _ = process.communicate(given)
                print_shares(" ".join(command), session)
                assert session.snapshot().hits > 100
            assert process.returncode == 0
            assert output == wanted
    assert (gzip if tool == "gzip" else lzma).decompress(expected) == piece


def reads_input(pid: int) -> bool:
    """Whether a process sleeps in read(0, ...) or poll."""
    words = Path(f"/proc/{pid}/syscall").read_text().split()
    return words[0] in ("0", "7", "271") and (words[0] != "0" or words[1] == "0x0")


def test_sqlite():
    """sqlite3 in an interactive session: the same answers."""
    need("sqlite3")
    script = """
        create table t(a integer primary key, b text);
        with recursive c(i) as (select 1 union all select i+1 from c where i<20000)
            insert into t select i, hex(i*7919) from c;
        select count(*), sum(a), max(b) from t where b like '%3%';
        create index i on t(b); select a from t order by b desc limit 5; pragma integrity_check;
    """
    expected = subprocess.run(["sqlite3", ":memory:"], input=script, capture_output=True, text=True, check=True).stdout
    with subprocess.Popen(["sqlite3", ":memory:"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: reads_input(process.pid), "sqlite3 reads its input")
        with anyprobe.attach(process.pid) as session:
            count_everything(session, exits=True)
            output, _ = process.communicate(script)
            print_shares("sqlite3", session)
        assert process.returncode == 0
        assert output == expected


def test_redis_under_its_benchmark(tmp_path):
    """redis-server with everything counted, under redis-benchmark: no errors, data as expected."""
    need("redis-server", "redis-benchmark", "redis-cli")
    path = str(tmp_path / "redis.sock")
    server = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(server, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: answers(path), "redis answers")
            with anyprobe.attach(process.pid) as session:
                count_everything(session)
                benchmark = ["redis-benchmark", "-s", path, "-n", "5000", "-q", "-t", "set,get,incr,lpush,zadd"]
                outcome = subprocess.run(benchmark, capture_output=True, text=True, timeout=120)
                assert outcome.returncode == 0, outcome.stderr
                client = ["redis-cli", "-s", path]
                evaluated = "local s=0; for i=1,1000 do s=s+redis.call('incrby','k',i) end; return s"
                result = subprocess.run([*client, "eval", evaluated, "0"], capture_output=True, text=True, timeout=30)
                assert result.stdout.strip() == "167167000"
                assert subprocess.run([*client, "bgsave"], capture_output=True, text=True).stdout.startswith(
                    "Background"
                )
                print_shares("redis-server", session)
            assert subprocess.run([*client, "get", "k"], capture_output=True, text=True).stdout.strip() == "500500"
            subprocess.run([*client, "shutdown", "nosave"], capture_output=True)
            assert process.wait(30) == 0
        finally:
            if process.poll() is None:
                process.kill()


def answers(path: str) -> bool:
    """Whether a server accepts connections on a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def test_go_program(compiled):
    """Goroutines, growing stacks, preemption by signals: everything counted, results right, main.Work exact."""
    target = Target([compiled("go_program.go")])
    try:
        before = target.go(1).calls["main.Work"]
        with anyprobe.attach(target.pid) as session:
            session.count("a.out:*")
            counts = target.go(30)
            print_shares("a Go program", session)
            assert hits(session.snapshot(), "main.Work") == counts.calls["main.Work"] - before
        target.go(5)
        target.finish()
    finally:
        target.close()


def test_busybox():
    """Static busybox computing a checksum of what it is fed."""
    need("busybox")
    content = os.urandom(3_000_000)
    command = ["busybox", "sha256sum"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        wait_until(lambda: reads_input(process.pid), "busybox reads its input")
        with anyprobe.attach(process.pid) as session:
            count_everything(session, exits=True)
            output, _ = process.communicate(content)
            print_shares("busybox", session)
        assert process.returncode == 0
        assert output.split()[0].decode() == hashlib.sha256(content).hexdigest()


def test_static_musl_program(run_target):
    """Everything in a static musl program, entries and exits."""
    target = run_target("static_program.c", options=("-static",), compiler="musl-gcc")
    with anyprobe.attach(target.pid) as session:
        count_everything(session, exits=True)
        counts = target.go(2000)
        print_shares("a static musl program", session)
        assert hits(session.snapshot(), "plain") == counts.calls["plain"]
        assert hits(session.snapshot(), "plain", "return") == counts.calls["plain"]
    target.go(5)
    target.finish()


def test_cplusplus_program(run_target):
    """Exceptions with everything counted in all modules: libstdc++, the unwinder, libc."""
    target = run_target("exceptions.cpp")
    with anyprobe.attach(target.pid) as session:
        count_everything(session, exits=True)
        counts = target.go(500)
        print_shares("C++ exceptions", session)
        assert hits(session.snapshot(), "thrower") == counts.calls["thrower"]
    target.go(5)
    target.finish()
