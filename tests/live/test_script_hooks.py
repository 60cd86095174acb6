"""Scripts as bpftrace's users expect them: begin, end and interval; maps at the end; stacks as keys and as values."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import anyprobe
from anyprobe import Map, func, i64, run, stack
from anyprobe.cli import main
from support.driver import build

pytestmark = pytest.mark.live
EXAMPLE = Path(__file__).parents[2] / "examples" / "leaks.py"

LEAKING = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#define KEPT __attribute__((noinline))
static void *volatile kept;
KEPT void leaks(int n) { kept = malloc(n); }
KEPT void clean(int n) { void *p = malloc(n); kept = p; free(p); }
KEPT void grows(void) { char *p = malloc(10); for (int i = 20; i < 200; i += 20) { p = realloc(p, i); kept = p; } }
KEPT void from_nothing(void) { kept = realloc(0, 77); }
KEPT void zeroed(void) { kept = calloc(3, 100); }
KEPT void aligned(void) { void *p = 0; if (!posix_memalign(&p, 64, 1000)) kept = p; }
KEPT void copied(void) { kept = strdup("twelve bytes"); }
static void *work(void *u) { for (int i = 0; i < 5000; i++) { clean(i); if (i % 10 == 0) leaks(16); } return u; }
int main(void)
{
    pthread_t t[3];
    for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, work, 0);
    for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
    grows(); from_nothing(); zeroed(); aligned(); copied();
    return 0;
}
"""


@pytest.fixture
def script(capfd, tmp_path, monkeypatch):
    def run(text, *arguments, status=0):
        path = tmp_path / "script.py"
        path.write_text(text)
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        capfd.readouterr()
        assert main(["script", str(path), *arguments]) == status
        return capfd.readouterr()

    return run


def test_the_leak_finder_loses_nothing(capfd, monkeypatch):
    """Fifteen thousand blocks that are freed on three threads, and each byte that is not, by where it comes from."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    program = build("leaking.c", "-O1", "-g", text=LEAKING)
    assert main(["script", str(EXAMPLE), "--json", "--", str(program)]) == 0
    document = json.loads(capfd.readouterr().err)
    assert "dropped" not in document
    assert "missing" not in document
    sums = {cell["key"][0]: cell["sum"] for cell in document["aggregations"]["outstanding bytes"]}
    by_function = {}
    for where, total in sums.items():
        for name in re.findall(r"leaking:(\w+)\+", where)[:1]:
            by_function[name] = by_function.get(name, 0) + total
    wanted = {
        "leaks": 24_000,
        "clean": 0,
        "grows": 180,
        "from_nothing": 77,
        "zeroed": 300,
        "aligned": 1000,
        "copied": 13,
    }
    assert {name: by_function[name] for name in wanted} == wanted


SCRIPT = """
from anyprobe import Map, func, session, stack, u64
starts = Map("starts", by=("size",), capacity=1 << 14)
where = Map("where", by=("size",), value=stack, capacity=1 << 14)
callers = Map("callers", by=("stack",))
hidden = Map("hidden", by=("size",), shown=False, capacity=1 << 14)

@session.begin
def begin():
    print("begins with", dict(starts.items()), flush=True)

@session.entry("libc:malloc")
def on_malloc(ctx, size: u64):
    starts[(size,)] = size * 2
    hidden[(size,)] = size
    where[(size,)] = ctx.ustack(3)
    callers[(ctx.ustack(3),)] = size

@session.end
def end():
    print("ends with", len(starts.items()), "sizes", flush=True)
"""


def test_begin_end_and_maps(script):
    program = build("leaking.c", "-O1", "-g", text=LEAKING)
    shown = script(SCRIPT, "--top", "0", "--", str(program))
    assert shown.out.startswith("begins with {}\nends with ")
    text = shown.err
    assert re.search(r"^starts \(map\)$", text, re.MULTILINE)
    assert re.search(r"^ *77 +154\b", text, re.MULTILINE)
    assert re.search(r"^ *77 +libc.so.6:malloc < .*leaking:from_nothing", text, re.MULTILINE), text
    assert re.search(r"^ *libc.so.6:malloc < leaking:leaks\+\w+ < leaking:work\+\w+ +16\b", text, re.MULTILINE), text
    assert "hidden" not in text
    document = json.loads(script(SCRIPT, "--json", "--", str(program)).err)
    assert {"key": [77], "value": 154} in document["maps"]["starts"]
    assert any(each["value"].startswith("libc.so.6:malloc < ") for each in document["maps"]["where"])
    assert "hidden" not in document["maps"]


def test_intervals(script):
    text = """
    from anyprobe import Count, session
    calls = Count("calls")
    count = 0

    @session.entry("libc:getppid")
    def hit(ctx):
        calls.add()

    @session.interval(0.05)
    def look():
        global count
        count += 1
        print("look", count, flush=True)

    @session.end
    def end():
        total = session.snapshot().aggregation("calls").total.count
        print("end", count, total > 0, flush=True)
    """
    program = build("often.c", "-O1", text="#include <unistd.h>\nint main(void) { for (;;) getppid(); }\n")
    with subprocess.Popen([program]) as process:
        try:
            began = time.monotonic()
            shown = script(re.sub(r"^    ", "", text, flags=re.MULTILINE), "-p", str(process.pid), "--for", "1")
            took = time.monotonic() - began
        finally:
            process.kill()
    looks = re.findall(r"^look (\d+)$", shown.out, re.MULTILINE)
    assert looks == [str(number + 1) for number in range(len(looks))]
    assert 2 <= len(looks) <= took / 0.05
    assert re.search(rf"^end {len(looks)} True$", shown.out, re.MULTILINE)


@pytest.mark.parametrize("hook", ["begin", "end", "interval(0.01)"])
def test_a_hook_that_fails_says_where(script, hook):
    program = build("leaking.c", "-O1", "-g", text=LEAKING)
    text = f"from anyprobe import session\n@session.{hook}\ndef wrong():\n    return 1 // 0\n"
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            shown = script(text, "-p", str(process.pid), "--for", "0.3" if hook == "end" else "100", status=2)
        finally:
            process.kill()
    assert 'script.py", line 4, in wrong' in shown.err
    assert "ZeroDivisionError" in shown.err
    assert program.exists()


def test_hooks_of_a_session_of_ones_own():
    program = build("leaking.c", "-O1", "-g", text=LEAKING)
    order = []
    with run([str(program)]) as session:
        session.begin(lambda: order.append("begin"))
        session.end(lambda: order.append("end"))
        seen = session.interval(1e-9)(lambda: order.append("interval"))
        assert session.hooks.look() is not None
        seen()
        session.resume()
        session.wait(180)
        assert order == ["begin", "interval", "interval"]
    assert order[-1] == "end"


def test_values_of_maps_have_types():
    assert (Map("a", value=stack).value, Map("b", value=func).value, Map("c", value=i64).value) == ("stack", "func", "")
    with pytest.raises(anyprobe.UsageError, match="values of type f64"):
        Map("d", value=anyprobe.f64)
