"""The commands that run handlers, as programs, on real processes."""

import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import anyprobe
from anyprobe.cli import main
from live.test_command_line import BUSY, PATIENCE, start
from support.driver import build, started

pytestmark = pytest.mark.live

CONTRACT = """
from anyprobe import Hist, Map, cstr, i32, ptr, session, u64   # `session`: what `anyprobe script` opened

sizes = Hist("malloc sizes")                                   # named: appears under that name in the output
slow = Hist("read ns", by=("tid",))

@session.entry("libc:malloc")
def on_malloc(size: u64):
    if size > 64:
        sizes.add(size)

@session.call("libc:read")                                    # entry and return of one call; ctx.data is the call's own
def on_read(ctx, fd: i32, buf: ptr, n: u64):
    ctx.data.t0 = ctx.now

@on_read.ret
def on_read_done(ctx):
    if ctx.retval > 0:
        slow.add(ctx.now - ctx.data.t0, key=(ctx.tid,))
"""
"""The script that users are promised, as it is."""
READER = """
import os
print('ready', flush=True)
while os.read(0, 100): bytearray(9000)
"""


@pytest.fixture
def reader():
    """A process that reads what it is given, and allocates memory each time."""
    command = [sys.executable, "-X", "importtime", "-c", READER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def busy():
    """A process that calls getppid a thousand times a second."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        assert process.poll() is None, "the target died"
        process.kill()


@pytest.fixture
def script(tmp_path):
    """Write a script and return its path."""

    def write(text):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


@pytest.fixture
def command(capfd, monkeypatch):
    """Run a command in this interpreter, which saves the time to start another."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        capfd.readouterr()
        status = main(arguments)
        shown = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, status, shown.out, shown.err)

    return run


def installed(command, pid):
    shown = command("probes", "-p", str(pid), "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


@contextmanager
def controller(*arguments):
    """Run a command until it is told to end."""
    process = start(*arguments)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)  # what nobody reads it would wait to write
        assert process.returncode == 130
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


# -- script


def test_the_promised_script_runs_on_a_running_process(command, reader, script, tmp_path):
    path = tmp_path / "results"
    counted = False
    with controller("script", script(CONTRACT), "-p", str(reader.pid), "--json", "--every", "0.1", "-o", str(path)):
        deadline = time.monotonic() + PATIENCE
        while not counted and time.monotonic() < deadline:
            reader.stdin.write(b"hello")
            reader.stdin.flush()
            time.sleep(0.005)
            counted = path.exists() and '"read ns": [{' in path.read_text()
    out = path.read_text().splitlines()[-1]
    aggregations = json.loads(out)["aggregations"]
    assert set(aggregations) == {"malloc sizes", "read ns"}
    assert aggregations["malloc sizes"]["min"] > 64
    (cell,) = aggregations["read ns"]
    assert cell["key"] == [reader.pid]
    assert sum(count for _, _, count in cell["buckets"]) == cell["count"] > 0
    assert installed(command, reader.pid) == []


def test_the_promised_script_runs_from_the_first_instruction(command, script, tmp_path):
    shown = command("script", script(CONTRACT), "--", "head", "-c", "99999", script(CONTRACT))
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == CONTRACT
    assert "malloc sizes (hist)" in shown.stderr
    assert "read ns (hist)" in shown.stderr
    assert "tid=" in shown.stderr


def test_the_promised_script_runs_unchanged_from_the_interface(command, script):
    import runpy

    with started(build("handled.c", "-O2", "-pthread")) as target, anyprobe.attach(target.pid) as session:
        names = runpy.run_path(script(CONTRACT))
        target.go(2)
        target.finish()
        assert {each.name for each in session.snapshot().aggregations} == {"malloc sizes", "read ns"}
        # the target's own reading of commands
        assert names["slow"].result()[(target.pid,)].count >= 1


def test_records_are_printed_as_they_come(busy, script):
    path = script("""
        from anyprobe import emit, printf, session

        @session.entry("libc:getppid")
        def on_getppid(ctx):
            printf(f"getppid by {ctx.tid}\\n")

        @session.ret("libc:getppid")
        def on_return(ctx):
            emit("back", result=ctx.retval)
    """)
    with controller("script", path, "-p", str(busy.pid)) as process:
        there, back = f"getppid by {busy.pid}\n", ""
        while not back.startswith("back result="):  # entries are armed a moment earlier than returns
            assert back in {"", there}
            back = process.stdout.readline()
        assert [process.stdout.readline() for _ in range(20)] == [there, back] * 10


def test_records_are_in_the_document(command, busy, script):
    path = script("""
        from anyprobe import emit, session

        @session.entry("libc:getppid")
        def on_getppid(ctx):
            emit("seen", tid=ctx.tid)
    """)
    shown = command("script", path, "-p", str(busy.pid), "--for", "1", "--json")
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    seen = document["records"]["seen"]
    assert len(seen) == document["sites"][0]["hits"] > 0
    assert {row["tid"] for row in seen} == {busy.pid}
    times = [row["ts_ns"] for row in seen]
    assert times == sorted(times)
    now = time.monotonic_ns()
    assert now - 60e9 < times[0] < now


def test_a_script_counts_in_several_processes(command, busy, script):
    path = script("""
        from anyprobe import Count, session
        calls = Count("calls", by=("pid",))

        @session.entry("libc:getppid")
        def on_getppid(ctx):
            calls.add(key=(ctx.pid,))
    """)
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        targets = ("-p", str(busy.pid), "-p", str(other.pid))
        shown = command("script", path, *targets, "--for", "1", "--json")
        other.kill()
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert {tuple(cell["key"]) for cell in document["aggregations"]["calls"]} == {(busy.pid,), (other.pid,)}
    assert len(document["targets"]) == 2


def test_a_handler_that_cannot_be_compiled_is_pointed_at(command, busy, script):
    path = script("""
        from anyprobe import session, u64

        @session.entry("libc:getppid")
        def on_getppid(n: u64):
            x = [n]
    """)
    shown = command("script", path, "-p", str(busy.pid), "--for", "1")
    assert shown.returncode == 2
    lines = shown.stderr.splitlines()
    assert lines[0].startswith(f"{path}:6:9: ")
    assert lines[2].index("^") == 2 + 8
    assert installed(command, busy.pid) == []


# -- hist


def test_hist_of_a_parameter(command):
    program = (
        sys.executable,
        "-c",
        "import os\nfor n in range(300): os.lseek(9, 100 + n % 3, 0) if n < 0 else os.getpgid(0)",
    )
    shown = command("hist", "libc:getpgid", "--of", "arg0 + 7", "--json", "--", *program)
    assert shown.returncode == 0, shown.stderr
    cell = json.loads(shown.stderr)["aggregations"]["arg0 + 7"]
    assert (cell["count"], cell["min"], cell["max"]) == (300, 7, 7)


def test_hist_of_latency_by_parameter_and_result(command, tmp_path):
    (tmp_path / "file").write_text("x" * 5000)
    path = tmp_path / "results"
    program = (
        sys.executable,
        "-S",
        "-c",
        f"import os; f = os.open({str(tmp_path / 'file')!r}, 0)\nwhile os.read(f, 1000): 0",
    )
    arguments = ("--of", "latency_ns", "--by", "size=u64(arg2), retval", "--json", "-o", str(path))
    shown = command("hist", "libc:read", *arguments, "--", *program)
    assert shown.returncode == 0, shown.stderr
    cells = {tuple(cell["key"]): cell for cell in json.loads(path.read_text())["aggregations"]["latency_ns"]}
    assert cells[1000, 1000]["count"] == 5
    assert cells[1000, 0]["count"] == 1
    assert 0 < cells[1000, 1000]["min"] <= cells[1000, 1000]["max"] < 10**9


def test_counts_by_text(command, tmp_path):
    program = (sys.executable, "-S", "-c", "import os\nfor n in range(9): os.path.exists('/nowhere' + str(n % 2))")
    arguments = ("--by", "cstr(arg0, 64)", "--as", "count", "--json")
    shown = command("hist", "libc:stat*", *arguments, "--", *program)
    assert shown.returncode == 0, shown.stderr
    cells = {cell["key"][0]: cell["count"] for cell in json.loads(shown.stderr)["aggregations"]["hits"]}
    assert (cells["/nowhere0"], cells["/nowhere1"]) == (5, 4)


@pytest.mark.parametrize(
    ("arguments", "place", "message"),
    [
        (("--of", "arg0 + argl"), 8, "argl is not defined"),
        (("--of", "arg0 +"), 7, "invalid syntax"),
        (("--of", "[arg0]"), 1, "a list is not possible"),
        (("--of", "arg0", "--by", "tid, arg1 / 2"), 6, "float"),
        (("--of", "arg0", "--by", "tid, cstr(arg1, 999)"), 17, "128 bytes"),
    ],
)
def test_mistakes_in_expressions_are_pointed_at(command, busy, arguments, place, message):
    shown = command("hist", "libc:getppid", *arguments, "-p", str(busy.pid), "--for", "1")
    assert shown.returncode == 2
    lines = shown.stderr.splitlines()
    assert lines[0].startswith(f"{arguments[-2]}:1:{place}: ")
    assert message in lines[0]
    assert lines[1] == "  " + arguments[-1]
    assert lines[2].index("^") == 2 + place - 1
    assert installed(command, busy.pid) == []


# -- trace


def test_trace_prints_a_line_for_each_hit(command):
    program = "import os\nfor _ in range(50): os.getpgid(0)"
    shown = command("trace", "libc:getpgid", "libc:getpgid%return", "--json", "--", sys.executable, "-c", program)
    assert shown.returncode == 0, shown.stderr
    hits = [json.loads(line) for line in shown.stderr.splitlines()]
    assert len(hits) == 100
    assert [hit["spec"].rpartition(":")[2] for hit in hits] == ["entry", "return"] * 50
    assert {len(hit["args"]) for hit in hits[::2]} == {6}
    assert {hit["args"][0] for hit in hits[::2]} == {0}
    assert len({hit["retval"] for hit in hits[1::2]}) == 1
    assert all({"ts_ns", "tid", "cpu"} <= set(hit) for hit in hits)
    assert [hit["ts_ns"] for hit in hits] == sorted(hit["ts_ns"] for hit in hits)


def test_trace_prints_expressions_and_what_is_missing(command, tmp_path):
    path = tmp_path / "lines"
    program = "import os\nfor n in range(3): os.access(f'/nowhere{n}', 0)"
    expressions = "path=cstr(arg0, 64), cstr(arg0 & 7, 8), ptr[u8](arg0)[1], retval"
    arguments = ("--print", expressions, "--json", "-o", str(path), "--quiet")
    shown = command("trace", "libc:access", *arguments, "--", sys.executable, "-c", program)
    assert shown.returncode == 0, shown.stderr
    hits = [json.loads(line) for line in path.read_text().splitlines()]
    hits = [hit for hit in hits if hit["path"].startswith("/nowhere")]
    assert [hit["path"] for hit in hits] == ["/nowhere0", "/nowhere1", "/nowhere2"]
    assert {hit["cstr(arg0 & 7, 8)"] for hit in hits} == {None}
    assert {hit["ptr[u8](arg0)[1]"] for hit in hits} == {ord("n")}
    assert {hit["retval"] & 0xFFFFFFFF for hit in hits} == {0xFFFFFFFF}


def test_trace_ends_after_some_hits(command, busy):
    shown = command("trace", "libc:getppid", "-p", str(busy.pid), "-c", "5", "--args", "1")
    assert shown.returncode == 0, shown.stderr
    zero, columns, *lines = shown.stdout.splitlines()
    assert re.fullmatch(r"time 0 is \d\d:\d\d:\d\d\.\d{6}, before the probes were placed", zero)
    assert columns.split() == ["seconds", "thread", "tid", "place"]
    assert len(lines) == 5
    assert all(re.match(rf" +[\d.]+ +\S*python\S* +{busy.pid} libc", line) for line in lines)
    assert all(f" {busy.pid} libc.so.6:getppid(" in line for line in lines)


def test_trace_at_an_instruction(command, busy):
    shown = command("trace", "libc:getppid%insn", "-p", str(busy.pid), "-c", "6", "--print", "ctx.regs.rsp", "--quiet")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert len(lines) == 6
    assert any("libc.so.6:getppid+0x" in line for line in lines)
    refused = command("trace", "libc:getppid%insn", "-p", str(busy.pid), "--print", "tid, arg0")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[0].startswith("--print:1:6: arg0 is not known at an instruction")


def test_what_comes_too_fast_is_counted(command):
    calls = 200_000
    text = f"#include <unistd.h>\nint main(void) {{ for (int n = 0; n < {calls}; n++) getppid(); }}"
    program = build("quick.c", "-O2", text=text)
    shown = command("trace", "libc:getppid", "--json", "--", str(program))
    assert shown.returncode == 0, shown.stderr
    lines = shown.stderr.splitlines()
    hits = [line for line in lines if line.startswith("{")]
    lost = [line for line in lines if "hits have no line" in line]
    told = int(lost[-1].split()[1].replace(",", "")) if lost else 0
    assert len(hits) + told == calls


@pytest.mark.parametrize("spec", ["uprobe:/lib/x86_64-linux-gnu/libc.so.6:getppid", "p:mine/probe libc:getppid"])
def test_specs_of_other_tools(command, busy, spec):
    for arguments in ((), ("--print", "retval")):
        shown = command("trace", spec, "-p", str(busy.pid), "-c", "2", *arguments)
        assert shown.returncode == 0, shown.stderr
        assert len(shown.stdout.splitlines()) == 2 + 2
    assert " = " in shown.stdout


# -- debug information

TYPED = """
struct client { int fd; long port; };
struct request { struct client *client; const char *path; };
__attribute__((noipa)) int serve(struct request *req, short depth, double weight, unsigned flags) {
    return req->client->port > 5 ? -1 : depth;
}
__attribute__((noipa)) void nothing(int tid) { (void)tid; }
int main(void) {
    struct client client = {3, 4};
    struct request request = {&client, "/etc/hosts"};
    for (int n = 0; n < 5; n++) {
        client.port = 3 + n;
        serve(&request, -2, 1.5, 7);
        nothing(n);
    }
}
"""


def traced(command, *arguments):
    program = build("typed.c", "-O1", text=TYPED)
    shown = command(*arguments, "--", str(program))
    assert shown.returncode == 0, shown.stderr
    return shown.stderr


def test_parameters_have_names_and_types_where_these_are_known(command):
    hits = [json.loads(line) for line in traced(command, "trace", "a.out:serve", "--json").splitlines()]
    assert len(hits) == 5
    (arguments,) = {json.dumps({**hit["args"], "req": 0}) for hit in hits}
    assert json.loads(arguments) == {"req": 0, "depth": -2, "weight": 1.5, "flags": 7}
    hits = [json.loads(line) for line in traced(command, "trace", "a.out:nothing", "--json").splitlines()]
    assert [hit["args"] for hit in hits] == [{"tid": n} for n in range(5)]
    assert "serve(req=0x" in traced(command, "trace", "a.out:serve")


def test_members_are_followed_at_entries_and_at_returns(command):
    expressions = "port=req.client.port, cstr(req.path, 32), depth, retval, arg3"
    hits = [
        json.loads(line)
        for line in traced(command, "trace", "a.out:serve", "--json", "--print", expressions).splitlines()
    ]
    assert [hit["port"] for hit in hits] == [3, 4, 5, 6, 7]
    assert [hit["retval"] for hit in hits] == [-2, -2, -2, -1, -1]
    assert {(hit["cstr(req.path, 32)"], hit["depth"], hit["arg3"]) for hit in hits} == {("/etc/hosts", -2, 7)}
    assert hits[0]["args"].keys() == {"req", "depth", "weight", "flags"}
    assert hits[0]["args"]["weight"] is None  # floats are not kept until the return
    document = json.loads(traced(command, "hist", "a.out:serve", "--of", "req.client.port", "--by", "retval", "--json"))
    cells = document["aggregations"]["req.client.port"]
    assert {cell["key"][0]: cell["sum"] for cell in cells} == {-1: 13, -2: 12}


def test_what_has_no_result_returns_nothing(command):
    hits = [json.loads(line) for line in traced(command, "trace", "a.out:nothing%return", "--json").splitlines()]
    assert [hit["retval"] for hit in hits] == [None] * 5


@pytest.mark.parametrize(
    ("spec", "expression", "place", "message"),
    [
        ("a.out:serve", "req.clint.port", 1, "struct request has no clint"),
        ("a.out:serve", "weight, retval", 1, "weight, of type f64, is not kept until the return"),
        ("a.out:serve", "arg4", 1, "serve has no whole number there"),
        ("a.out:nothing", "tid, retval", 6, "nothing returns nothing"),
        ("a.out:nothing", "size", 1, "size is not defined"),
    ],
)
def test_mistakes_about_what_is_known(command, spec, expression, place, message):
    program = build("typed.c", "-O1", text=TYPED)
    shown = command("trace", spec, "--print", expression, "--", str(program))
    assert shown.returncode == 2
    assert shown.stderr.splitlines()[0].startswith(f"--print:1:{place}: {message}")


# -- explain


def test_explain_shows_the_bounds_of_a_scripts_handlers(command, busy, script):
    path = script("""
        from anyprobe import Count, session, u64
        calls = Count("calls")
        session.count("libc:getppid")

        @session.entry("libc:getppid")
        def on_getppid(ctx):
            for n in range(100):
                calls.add()

        @session.call("libc:getppid")
        def on_call(ctx):
            ctx.data.t0 = ctx.now

        @on_call.ret
        def on_done(ctx):
            if ctx.now - ctx.data.t0 > 1000:
                calls.add()

        @session.entry("libc:malloc")
        def on_malloc(size: u64):
            calls.add()
    """)
    before = Path(f"/proc/{busy.pid}/maps").read_text()
    shown = command("explain", "libc:getppid", "-p", str(busy.pid), "--script", path, "--json")
    assert shown.returncode == 0, shown.stderr
    handlers = {each["name"]: each for each in json.loads(shown.stdout)["handlers"]}
    assert handlers.keys() == {"on_getppid", "on_call", "on_done"}
    assert handlers["on_getppid"]["steps"] > 100 > handlers["on_call"]["steps"]
    assert handlers["on_done"]["place"] == "return"
    text = command("explain", "libc:malloc", "-p", str(busy.pid), "--script", path)
    assert "on_malloc" in text.stdout
    assert "on_getppid" not in text.stdout
    assert "operations" in text.stdout
    assert Path(f"/proc/{busy.pid}/maps").read_text() == before


def check_interrupted(path, busy, command):
    """Interrupt a script once it has printed that something was counted: there are results, and nothing is left."""
    with controller("script", path, "-p", str(busy.pid)) as process:
        while process.stdout.readline() != "True\n":
            pass
        process.send_signal(signal.SIGINT)
        assert "calls (count)" in process.stdout.read()
    assert installed(command, busy.pid) == []


def test_a_script_that_runs_for_ever_is_interrupted_and_has_results(command, busy, script):
    path = script("""
        import time
        from anyprobe import Count, session
        calls = Count("calls")

        @session.entry("libc:getppid")
        def on_getppid(ctx):
            calls.add()

        while True:
            time.sleep(0.01)
            print(calls.result().total.count > 5, flush=True)
    """)
    check_interrupted(path, busy, command)


@pytest.mark.parametrize("hook", ["begin", "interval(0.01)"])
def test_a_function_of_a_script_that_runs_for_ever_is_interrupted_and_there_are_results(command, busy, script, hook):
    path = script(f"""
        import time
        from anyprobe import Count, session
        calls = Count("calls")

        @session.entry("libc:getppid")
        def on_getppid(ctx):
            calls.add()

        @session.{hook}
        def does_not_end():
            while True:
                time.sleep(0.01)
                print(calls.result().total.count > 5, flush=True)
    """)
    check_interrupted(path, busy, command)


# -- fetch arguments

FETCHED = """
struct inner { int number; const char *text; };
struct outer { short first; struct inner *inner; };
__attribute__((noipa)) long looked(struct outer *outer, int flags) { return outer->inner->number + flags; }
int main(void) {
    struct inner inner = {-7, "some text"};
    struct outer outer = {-3, &inner};
    for (int n = 0; n < 3; n++) looked(&outer, n | 0x50);
}
"""


def test_fetch_arguments_of_kprobe_events_are_shown(command):
    program = str(build("fetched.c", "-O1", text=FETCHED))
    line = (
        "p:group/event a.out:looked first=+0(%di):s16 number=+0(+8(%di)):s32 text=+0(+8(+8(%di))):string "
        "flags=%si:x32 low=%si:b4@0/32 wrong=+0(%si):u8 comm=$comm"
    )
    shown = command("trace", line, "--json", "--", program)
    assert shown.returncode == 0, shown.stderr
    hits = [json.loads(each) for each in shown.stderr.splitlines() if each.startswith("{")]
    assert [hit["args"] for hit in hits] == [
        {"first": -3, "number": -7, "text": "some text", "flags": 0x50 | n, "low": n, "wrong": None, "comm": "fetched"}
        for n in range(3)
    ]
    line = "r:group/event a.out:looked result=$retval:s32 flags=$arg2:x32"
    shown = command("trace", line, "--", program)
    assert "fetched:looked(result=73, flags=80) = 73" in shown.stderr
    shown = command("trace", "p:group/event a.out:looked flags=%sy", "--", program)
    assert shown.returncode == 2
    assert "%sy" in shown.stderr


def test_trace_of_two_processes(busy, command):
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        targets = ("-p", str(busy.pid), "-p", str(other.pid))
        shown = command("trace", "libc:getppid", *targets, "--for", "1", "--json")
        text = command("trace", "libc:getppid", *targets, "-c", "3")
        other.kill()
    assert shown.returncode == 0, shown.stderr
    hits = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {hit["pid"] for hit in hits} == {busy.pid, other.pid}
    assert [hit["ts_ns"] for hit in hits] == sorted(hit["ts_ns"] for hit in hits)
    assert f" {busy.pid}/{busy.pid} libc.so.6:getppid" in text.stdout or f" {other.pid}/{other.pid} " in text.stdout


def test_the_kernels_names_work_in_scripts(busy, script, command):
    path = script("""
        from anyprobe import Count
        from anyprobe.kprobes import Kprobe, register_kprobe
        calls = Count("calls")

        def pre(p, regs):
            calls.add()
            return 0

        assert register_kprobe(Kprobe(symbol_name="getppid", pre_handler=pre)) == 0
    """)
    shown = command("script", path, "-p", str(busy.pid), "--for", "1", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["aggregations"]["calls"]["count"] > 0
    assert installed(command, busy.pid) == []


def test_a_bad_pointer_on_the_way_leaves_the_line_and_the_rest(command):
    program = str(build("fetched.c", "-O1", text=FETCHED))
    expressions = (
        "i32(ptr[u64](ptr[u64](arg1)[0])[0]) + 1, cstr(ptr(ptr[u64](arg1)[0]), 8), ok=arg1 & 1, i32(retval) > 0"
    )
    shown = command("trace", "a.out:looked", "--print", expressions, "--json", "--", program)
    assert shown.returncode == 0, shown.stderr
    hits = [json.loads(each) for each in shown.stderr.splitlines() if each.startswith("{")]
    names = [each.strip() for each in ("i32(ptr[u64](ptr[u64](arg1)[0])[0]) + 1", "cstr(ptr(ptr[u64](arg1)[0]), 8)")]
    assert [[hit[name] for name in (*names, "ok", "i32(retval) > 0")] for hit in hits] == [
        [None, None, n & 1, True] for n in range(3)
    ]


def test_addresses_are_shown_by_name_on_demand(busy, command):
    shown = command("trace", "libc:getppid", "-p", str(busy.pid), "-c", "1", "--print", "by=func(caller), ctx.func")
    assert shown.returncode == 0, shown.stderr
    assert ' ctx.func="libc.so.6:getppid"' in shown.stdout
    assert ' by="' in shown.stdout
    shown = command("trace", "libc:getppid", "-p", str(busy.pid), "-c", "1", "--print", "by=func(caller), func")
    assert ' func="libc.so.6:getppid"' in shown.stdout


def test_what_is_nobodys_expression_has_no_place(busy, command):
    shown = command("hist", "libc:getppid", "libc:malloc", "--of", "'text'", "-p", str(busy.pid))
    assert shown.returncode == 2
    assert "<expressions" not in shown.stderr


NESTED = """
#define KEPT __attribute__((noinline))
KEPT int factorial(int n) { if (n < 2) return 1; int r = factorial(n - 1); __asm__ volatile(""); return r * n; }
KEPT int outer(int n) { int r = factorial(n); __asm__ volatile(""); return r + 1; }
int main(void) { outer(3); return 0; }
"""


def test_calls_are_indented_where_both_ends_are_traced(command):
    program = build("nested.c", "-O1", "-g", text=NESTED)
    both = ("a.out:outer", "a.out:outer%return", "a.out:factorial", "a.out:factorial%return")
    shown = command("trace", *both, "--", str(program)).stderr
    places = re.findall(r"^ +[\d.]+ +nested +\d+ ( *)nested:(\S+)", shown, re.MULTILINE)
    expected = [(0, "outer"), (1, "factorial"), (2, "factorial"), (3, "factorial")]
    assert [(len(space) // 2, name.partition("(")[0]) for space, name in places] == expected + expected[::-1]
