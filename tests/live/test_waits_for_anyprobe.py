"""What a program waits for anyprobe, where it sets handlers or loads libraries, is in no time of its calls."""

import subprocess
import time

import pytest

import anyprobe
from anyprobe.probes.parts.modules import ModuleReconciler
from anyprobe.probes.providers.function.gates.handler_gate import HandlerGate
from support.driver import wait_until
from support.results import timing

pytestmark = pytest.mark.live
WAIT, CALLS = 0.4, 3
PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void first(int n) { (void)n; }
static void second(int n) { (void)n; _Exit(3); }
static void third(int n) { (void)n; _Exit(4); }
static void (*const handlers[])(int) = {first, second, third};
__attribute__((noinline)) static void inner(int n, const char *library)
{
    if (library) dlclose(dlopen(library, RTLD_NOW));
    else signal(SIGSEGV, handlers[n]);
    __asm__ volatile("nop;nop;nop;nop");
}
__attribute__((noinline)) static void outer(const char *library)
{
    for (int n = 0; n < 3; n++) inner(n, library);
    __asm__ volatile("nop;nop;nop;nop");
}
int main(int argc, char **argv)
{
    double began = now();
    outer(argc > 1 ? argv[1] : NULL);
    printf("%.3f\\n", now() - began);
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("waits")
    (folder / "program.c").write_text(PROGRAM)
    subprocess.run(["cc", "-O2", "-o", folder / "program", folder / "program.c"], check=True)
    (folder / "library.c").write_text("int in_library(void) { return 1; }")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", folder / "library.so", folder / "library.c"], check=True)
    return folder / "program"


@pytest.mark.parametrize("what", ["handlers", "libraries"])
@pytest.mark.parametrize("self_time", [False, True])
def test_waits_for_anyprobe_are_in_no_time(program, monkeypatch, tmp_path, what, self_time):
    """Anyprobe takes long on purpose; the program's own clock has all of it."""
    gate, name = (HandlerGate, "look") if what == "handlers" else (ModuleReconciler, "place_fresh")
    original = getattr(gate, name)

    def slowly(self, *args):
        if what == "libraries" or not self._coming.empty():
            time.sleep(WAIT)
        return original(self, *args)

    command = [str(program), *([str(program.parent / "library.so")] if what == "libraries" else [])]
    with open(tmp_path / "said", "w") as said, anyprobe.run(command, stdout=said, self_time=self_time) as session:
        session.time("a.out:outer", "a.out:inner")
        session.count("library:in_library", follow=True)
        monkeypatch.setattr(gate, name, slowly)
        session.host.life.hold_handlers()
        session.resume()

        def has_ended():
            session.host.loop.follow_handlers(often=True)
            return session.host.process.exited()

        wait_until(has_ended, "its end")
        snapshot = session.snapshot()
    monkeypatch.undo()
    own = float((tmp_path / "said").read_text())
    assert own > CALLS * WAIT
    inner, outer = timing(snapshot, "inner"), timing(snapshot, "outer")
    assert (inner.count, outer.count) == (CALLS, 1)
    for sum_ns in (inner.sum_ns, outer.sum_ns):
        assert sum_ns / 1e9 < own - 0.9 * CALLS * WAIT
    if self_time:
        assert outer.nested.self_ns / 1e9 < WAIT / 2
