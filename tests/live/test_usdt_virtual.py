"""Virtual USDT markers: those that anyprobe describes for Debian 12's builds, and one's own."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

import anyprobe
from anyprobe import Count
from anyprobe.binary.images.image import Image
from anyprobe.probes.providers.usdt.checking import checked
from anyprobe.probes.providers.usdt.descriptions import known_descriptions
from support.driver import PATIENCE, build, started
from support.results import counts

pytestmark = pytest.mark.live


def described(name):
    """Return the path of a described file that is here, in the build that is described."""
    for each in known_descriptions()[0]:
        found = checked(each) if each.name == name else None
        if found is not None and found.path:
            return found
    pytest.skip(f"{name} is here in another build than the described ones")
    return None


@pytest.mark.parametrize("name", ["libc.so.6", "python3.11"])
def test_every_place_of_the_shipped_descriptions_holds(name):
    found = described(name)
    assert [each.problem for each in found.markers] == [""] * len(found.markers)


PROGRAM = """
import sys
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def three():
    yield 1; yield 2; yield 3
def fails():
    raise ValueError
class Thing:
    def method(self): return len(repr(self.other()))
    def other(self): return 7
print("ready", flush=True)
for line in sys.stdin:
    fib(10)
    list(three())
    try: fails()
    except ValueError: pass
    Thing().method()
    print("done", flush=True)
"""


@contextmanager
def python(path):
    pipe = subprocess.PIPE
    with subprocess.Popen([path, "-c", PROGRAM], stdin=pipe, stdout=pipe, text=True) as process:

        def go(rounds):
            for _ in range(rounds):
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "done\n"

        assert process.stdout.readline() == "ready\n"
        yield process.pid, go
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_every_call_between_python_functions_is_seen_to_enter_and_to_return():
    """What the interpreter's own markers lost in 3.11."""
    entries, returns = Count("entries"), Count("returns")
    with python(described("python3.11").path) as (pid, go):
        with anyprobe.attach(pid) as session:

            @session.entry("usdt:python:function-entry")
            def on_entry(funcname, lineno, resumed):
                entries.add(key=(funcname, lineno, resumed))

            @session.entry("usdt:python:function-return")
            def on_return(filename, funcname):
                returns.add(key=(filename, funcname))

            go(20)
            entered = {key: count for key, count in counts(entries).items() if key[0] not in ("decode", "<module>")}
            left = {key: count for key, count in counts(returns).items() if key[1] not in ("decode", "<module>")}
        assert entered == {
            ("fib", 3, 0): 20 * 177,
            ("three", 5, 0): 20,
            ("three", 5, 1): 60,
            ("fails", 7, 0): 20,
            ("method", 10, 0): 20,
            ("other", 11, 0): 20,
        }
        assert left == {
            ("<string>", name): count
            for name, count in (("fib", 20 * 177), ("three", 80), ("fails", 20), ("method", 20), ("other", 20))
        }
        go(1)


def test_the_notes_of_pythons_collector_and_imports_are_there_as_well():
    path = described("python3.11").path
    with python(path) as (pid, _), anyprobe.attach(pid) as session:
        names = {site.marker.name for site in session.list("usdt:python:*")}
    assert {"gc__start", "gc__done", "import__find__load__start", "function__entry", "function__return"} <= names


MUTEXES = """
#define _GNU_SOURCE
#include "protocol.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
TALLY(locked); TALLY(again); TALLY(refused); TALLY(allocated);
static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER, recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
    checking = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP, adaptive = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
static void with(pthread_mutex_t *mutex) {
    CALLED(locked); pthread_mutex_lock(mutex); RETURNED(locked);
    pthread_mutex_unlock(mutex);
}
static void *waits(void *mutex) { with(mutex); return 0; }
/* Another thread waits for the mutex in the kernel, which the mutex says by its 2, before it is given back. */
static void waited_for(pthread_mutex_t *mutex) {
    pthread_t thread;
    CALLED(locked); pthread_mutex_lock(mutex); RETURNED(locked);
    pthread_create(&thread, 0, waits, mutex);
    while (*(volatile int *)mutex != 2) sched_yield();
    pthread_mutex_unlock(mutex);
    pthread_join(thread, 0);
}
static void one_round(void) {
    waited_for(&plain); waited_for(&recursive); waited_for(&adaptive);
    with(&plain); with(&recursive); with(&checking); with(&adaptive);
    CALLED(locked); pthread_mutex_lock(&recursive); RETURNED(locked);
    CALLED(again); pthread_mutex_lock(&recursive); RETURNED(again);
    pthread_mutex_unlock(&recursive); pthread_mutex_unlock(&recursive);
    CALLED(locked); pthread_mutex_lock(&checking); RETURNED(locked);
    CALLED(refused); check(pthread_mutex_lock(&checking) == 35, "EDEADLK"); RETURNED(refused);
    pthread_mutex_unlock(&checking);
    CALLED(allocated); void *volatile memory = malloc(12345); RETURNED(allocated);
    free(memory);
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(locked); USE_TALLY(again); USE_TALLY(refused); USE_TALLY(allocated);
}
"""


def test_mutexes_and_memory_of_debians_libc_have_the_names_of_plockstat():
    described("libc.so.6")
    acquired, released, errors, memory = (Count(name) for name in ("acquired", "released", "errors", "memory"))
    blocks, spins = Count("blocks"), Count("spins")
    with started(build("plockstat.c", text=MUTEXES)) as target:
        with anyprobe.attach(target.pid) as session:

            @session.entry("usdt:plockstat:mutex-acquire")
            def on_acquire(mutex, recursive):
                acquired.add(key=(recursive,))

            @session.entry("usdt:plockstat:mutex-release")
            def on_release(mutex):
                released.add()

            @session.entry("usdt:plockstat:mutex-block")
            def on_block():
                blocks.add()

            @session.entry("usdt:plockstat:mutex-spin")
            def on_spin():
                spins.add()

            @session.entry("usdt:plockstat:mutex-error")
            def on_error(error, mutex):
                errors.add(key=(error,))

            @session.entry("usdt:glibc:malloc-entry", when=lambda size: size == 12345)
            def on_malloc(size):
                memory.add()

            tallies = target.go(50).calls
            assert counts(acquired)[1,] == tallies["again"] == 50
            assert counts(errors) == {(35,): tallies["refused"]}
            assert memory.result().total.count == tallies["allocated"] == 50
            assert blocks.result().total.count == 3 * 50
            assert spins.result().total.count == 50
            # the program's and those that the C library takes for itself in the same calls
            assert counts(acquired)[0,] >= tallies["locked"] == 600
            assert released.result().total.count == counts(acquired)[0,]
        target.go(2)
        target.finish()


def test_arguments_that_follow_addresses(tmp_path, monkeypatch):
    program = build("marked.c", "-Wl,--build-id=sha1")
    folder = tmp_path / "anyprobe" / "usdt"
    folder.mkdir(parents=True)
    (folder / "marked.toml").write_text(
        f'[[file]]\nbuild-id = "{Image.open(str(program)).build_id}"\n'
        '[file.probes."mine:named"]\nat = "named"\n'
        'arguments = ["text: cstr = %rdi", "first: u8 = [%rdi]", "later: cstr = %rdi+2", "value: i32 = %esi",'
        ' "nowhere: u32 = [[%rsi]+8]", "nothing: cstr = [[%rsi]+8]+1"]\n'
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    known_descriptions.cache_clear()
    texts, wholes, missing = Count("texts"), Count("wholes"), Count("missing")
    try:
        with started(program) as target, anyprobe.attach(target.pid) as session:

            @session.entry("usdt:mine:named")
            def on_named(later, text, first):
                wholes.add(key=(text,))
                texts.add(key=(later, first))

            @session.entry("usdt:mine:named")
            def on_missing(nowhere, nothing):
                if nowhere is None and nothing is None:
                    missing.add()

            target.go(30)
            assert counts(texts) == {("text", ord("a")): 30}
            assert counts(wholes) == {("a text",): 30}
            assert missing.result().total.count == 30
            target.finish()
    finally:
        known_descriptions.cache_clear()


def test_ones_own_description_is_used_by_the_command_line(tmp_path):
    program = build("marked.c", "-Wl,--build-id=sha1")
    folder = tmp_path / "anyprobe" / "usdt"
    folder.mkdir(parents=True)
    (folder / "marked.toml").write_text(
        f'[[file]]\nbuild-id = "{Image.open(str(program)).build_id}"\n'
        '[file.probes."mine:widths-entry"]\nat = "widths"\narguments = ["value: u64 = %rdi"]\n'
    )
    with started(program) as target:
        target.run_freely()
        outcome = subprocess.run(
            [sys.executable, "-m", "anyprobe", "trace", "-p", str(target.pid), "-c", "3", "usdt:mine:widths-entry"],
            capture_output=True, text=True, timeout=PATIENCE, env=dict(os.environ, XDG_CONFIG_HOME=str(tmp_path)),
        )  # fmt: skip
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stdout.count("mine:widths-entry(value=") == 3, outcome.stdout
        target.halt()
        target.finish()
