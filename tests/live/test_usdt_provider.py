"""Providers of Python programs, as anyprobe, bpftrace, gdb and perf see them."""

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import anyprobe
from anyprobe import Count, cstr, emit, f32, f64
from support.driver import PATIENCE
from support.results import counts

pytestmark = pytest.mark.live

PROGRAM = """
import os, sys
from anyprobe import cstr, f32, f64, i16, i32, u8, u64
from anyprobe.usdt import Provider

provider = Provider("pyapp")
request = provider.probe("request", u64, cstr)
twelve = provider.probe("twelve-forms", u64, i32, f64, cstr, u8, f32, i16, i32, bool, int, str, u64)
print(os.getpid(), flush=True)
for line in sys.stdin:
    word, count = line.split()
    if word == "fork":
        pid = os.fork()
        if not pid:
            os.read(int(count), 1)
            sys.exit()
        print(pid, flush=True)
        continue
    if word == "go":
        for n in range(1, int(count) + 1):
            request(n, f"text {n}")
            twelve(n, -n, n / 4, f"zwölf {n}", n & 255, n / 2, -n, n * 3, n & 1, -n * 7, "last", (1 << 64) - n)
    print(request.enabled() or twelve.enabled(), flush=True)
"""


class Python:
    """A Python program with a provider, which fires when it is told to."""

    def __init__(self, *, keep=()):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=keep
        )
        self.pid = int(self.process.stdout.readline())

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def go(self, count):
        return self.tell(f"go {count}") == "True"

    def await_listener(self, tracer):
        """Wait until a tool has counted the semaphore up; while a debugger has the program stopped, it is silent."""
        deadline = time.monotonic() + PATIENCE
        while self.tell("look 0") != "True":
            assert tracer.poll() is None, tracer.communicate()
            assert time.monotonic() < deadline

    def begin(self, count):
        """Have it fire, whatever keeps it from answering."""
        self.process.stdin.write(f"go {count}\n")
        self.process.stdin.flush()

    def files(self):
        maps = Path(f"/proc/{self.pid}/maps").read_text()
        return sorted(set(re.findall(r"/\S*/pyapp\S*\.so", maps)))

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Have files in a folder of the test's own: whoever makes some removes those that others have left."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def program():
    made = Python()
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()
    made.process.stdout.close()
    with suppress(BrokenPipeError):
        made.process.stdin.close()


def expected(n):
    return (n, -n, n / 4, n & 255, n / 2, -n, n * 3, n & 1, -n * 7, (1 << 64) - n)


def test_anyprobe_reads_every_argument_and_sets_the_semaphore(program):
    texts, lasts = Count("texts"), Count("lasts")
    assert not program.go(1)
    with anyprobe.attach(program.pid) as session:

        @session.entry("usdt:pyapp:twelve-forms")
        def on_twelve(arg0, arg1, arg2: f64, arg4, arg5: f32, arg6, arg7, arg8, arg9, arg11):
            emit("forms", a=arg0, b=arg1, c=arg2, d=arg4, e=arg5, f=arg6, g=arg7, h=arg8, i=arg9, j=arg11)

        @session.entry("usdt:pyapp:twelve-forms")
        def on_texts(arg3: cstr, arg10: cstr):
            texts.add(key=(arg3,))
            lasts.add(key=(arg10,))

        @session.entry("usdt:pyapp:request")
        def on_request(number, text: cstr):
            texts.add(key=(text,))

        assert program.go(40)
        ((_, _, rows),) = session.handling.records(final=True)
        found = [tuple(row[name].item() for name in "abcdefghij") for row in rows]
        assert found == [expected(n) for n in range(1, 41)]
        assert counts(texts) == {(text,): 1 for n in range(1, 41) for text in (f"zwölf {n}", f"text {n}")}
        assert counts(lasts) == {("last",): 40}
    assert not program.go(1)
    program.end()


def test_counts_are_exact_and_the_probes_are_reached_by_jumps(program):
    with anyprobe.attach(program.pid) as session:
        assert {each.strategy for each in session.list("usdt:pyapp:*")} == {"jump"}
        session.count("usdt:pyapp:*")
        program.go(500)
        assert {site.label: site.hits for site in session.snapshot().sites} == {
            "pyapp:request": 500,
            "pyapp:twelve-forms": 500,
        }
    program.end()


def test_gdb_lists_the_probes_and_reads_their_arguments(program, tmp_path):
    if not shutil.which("gdb"):
        pytest.skip("gdb is not installed")
    commands = """
        info probes stap pyapp
        break -probe-stap pyapp:twelve__forms
        continue
        print $_probe_argc
        print $_probe_arg0
        print $_probe_arg1
        print $_probe_arg7
        print $_probe_arg11
        print/x $_probe_arg2
        print (char *)$_probe_arg3
        delete
    """
    script = tmp_path / "script"
    script.write_text("\n".join(map(str.strip, commands.splitlines())))
    gdb = subprocess.Popen(
        ["gdb", "-batch", "-nx", "-p", str(program.pid), "-x", str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    program.await_listener(gdb)
    program.begin(1)
    said, _ = gdb.communicate(timeout=PATIENCE)
    assert re.search(r"stap pyapp +request ", said), said
    assert re.search(r"stap pyapp +twelve__forms ", said), said
    values = re.findall(r"^\$\d+ = (.*)$", said, re.MULTILINE)
    assert values[:5] == ["12", "1", "-1", "3", str((1 << 64) - 1)], said
    assert values[5] == "0x3fd0000000000000", said
    assert "zwölf 1" in values[6] or "zw\\303\\266lf 1" in values[6], said


def test_perf_reads_the_notes(program, tmp_path):
    if not shutil.which("perf"):
        pytest.skip("perf is not installed")
    path = next(each for each in program.files() if each.endswith("/pyapp.so"))

    def perf(*words):
        command = ["perf", "--buildid-dir", str(tmp_path), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)

    said = perf("buildid-cache", "--add", path)
    assert said.returncode == 0, said.stderr
    assert set(re.findall(r"sdt_\w+:\w+", perf("list", "sdt").stdout)) == {"sdt_pyapp:request"}


@contextmanager
def bpftrace(program, text):
    """Run bpftrace on a program from when it listens, and have what it prints."""
    tracer = subprocess.Popen(
        ["bpftrace", "-p", str(program.pid), "-e", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        program.await_listener(tracer)
        yield tracer
    finally:
        tracer.kill()
        tracer.communicate()


@pytest.mark.root
def test_bpftrace_reads_arguments(program):
    if not shutil.which("bpftrace") or os.getuid():
        pytest.skip("bpftrace is not installed, or not permitted")
    text = (
        'usdt:*:pyapp:twelve__forms { printf("%d %d %llx %s %d %x\\n", arg0, arg1, arg2, str(arg3), arg4, arg5);'
        " @n++; if (@n == 3) { exit(); } }"
    )
    with bpftrace(program, text) as tracer:
        deadline = time.monotonic() + PATIENCE
        while tracer.poll() is None:  # it counts the semaphore up before it places its probe
            program.go(100)
            assert time.monotonic() < deadline
        lines = [line.split() for line in tracer.communicate()[0].splitlines() if "zw" in line]
    assert len(lines) == 3
    for first, second, third, _, text_number, fifth, sixth in lines:
        n = int(first)
        double, single = (
            int.from_bytes(struct.pack(form, value), "big") for form, value in ((">d", n / 4), (">f", n / 2))
        )
        assert [int(second), int(third, 16), int(text_number), int(fifth), int(sixth, 16)] == [-n, double, n, n, single]


def test_files_go_with_the_last_process_that_uses_them(program):
    reading, writing = os.pipe()
    try:
        parent = Python(keep=(reading,))
        files = parent.files()
        assert len(files) == 2
        assert all(map(os.path.exists, files))
        child = int(parent.tell(f"fork {reading}"))
        parent.end()
        assert all(map(os.path.exists, files))
        with anyprobe.attach(child) as session:
            assert len(session.list("usdt:pyapp:*")) == 2
    finally:
        os.close(writing)
        os.close(reading)
    deadline = time.monotonic() + PATIENCE
    while any(map(os.path.exists, files)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    parent.process.stdout.close()
    program.end()


def test_what_a_killed_process_left_is_removed_by_the_next_one(program):
    files = program.files()
    os.kill(program.pid, signal.SIGKILL)
    program.process.wait()
    assert all(map(os.path.exists, files))
    following = Python()
    assert not any(map(os.path.exists, files))
    following.end()
    following.process.stdout.close()
