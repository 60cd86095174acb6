"""Probes in libraries that a program loads later: in place before anything in them runs, and gone with them."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

import anyprobe
from anyprobe import Count, Sum, i32
from anyprobe.probes.parts.modules import ModuleReconciler
from support.driver import PATIENCE, build, wait_until
from support.plugins import is_gated, told

pytestmark = pytest.mark.live
AT_LOAD, AT_UNLOAD, CALLS = 100, 10, 1_000
LIBRARY = """
#include <string.h>
static volatile unsigned long sum;
static char text[] = "some text";
__attribute__((noinline)) int plugin_work(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
__attribute__((noinline)) unsigned long plugin_length(const char *of) { return strlen(of); }
static int one(int n) { return n + 1; }
static int two(int n) { return n + 2; }
static int (*choose(void))(int) { plugin_work(1); return sum ? two : one; }
int chosen(int n) __attribute__((ifunc("choose")));
__attribute__((constructor)) static void begin(void) { for (int n = 0; n < 100; n++) plugin_work(chosen(n)); }
__attribute__((destructor)) static void end(void) { for (int n = 0; n < 10; n++) plugin_work(n); }
"""
PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static const char *path;
static void *load(void *unused) { (void)unused; return dlopen(path, RTLD_NOW); }
int main(int argc, char **argv) {
    void *library = 0;
    int c;
    (void)argc;
    path = argv[1];
    puts("ready"); fflush(stdout);
    while ((c = getchar()) != EOF) {
        int (*work)(int) = library ? (int (*)(int))dlsym(library, "plugin_work") : 0;
        if (c == 'l') library = dlopen(path, RTLD_NOW);
        if (c == 'z') library = dlopen(path, RTLD_LAZY);
        if (c == 'm') library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
        if (c == 't') { pthread_t one; pthread_create(&one, 0, load, 0); pthread_join(one, &library); }
        if (c == 'u') dlclose(library), library = 0;
        if (c == 'w') for (int n = 0; n < 1000; n++) work(n);
        if (c == 'c') for (int n = 0; n < 50; n++) { library = dlopen(path, RTLD_NOW); dlclose(library); library = 0; }
        if (c == 'n' && library == 0) puts(dlerror());
        if (c != '\\n') { puts("done"); fflush(stdout); }
    }
    return 0;
}
"""
IN_ONE_LIFE = AT_LOAD + 1
"""Calls of the constructor, and of the resolver that chooses a function; the destructor's ten come with the end."""


@pytest.fixture
def files():
    library = build("loaded.c", "-shared", "-fPIC", "-O1", "-fno-builtin", text=LIBRARY)
    return build("loads.c", "-O1", "-pthread", "-ldl", text=PROGRAM), library


@pytest.fixture
def program(files):
    with told(*files) as do:
        yield do


@pytest.mark.parametrize("live", [False, True], ids=["stops", "live"])
@pytest.mark.parametrize("way", ["l", "z", "t", "m"], ids=["now", "lazy", "thread", "namespace"])
def test_what_runs_at_loading_is_counted(program, way, live):
    """Constructors and what chooses functions: nobody has to look in time."""
    with anyprobe.attach(program.pid, live=live) as session:
        (probe,) = session.count("loaded:plugin_work", follow=True)
        program(way)
        assert probe.armed
        program("w")
        assert session.snapshot().hits == IN_ONE_LIFE + CALLS
        program("u")
        assert session.snapshot().hits == IN_ONE_LIFE + CALLS + 10
        assert session.warnings == []


def by_handler(session, spec):
    total = Sum("arguments")
    session.entry(spec, follow=True)(lambda arg0: total.add(i32(arg0)))


WAYS = {
    "count": lambda session, spec: session.count(spec, follow=True),
    "all": lambda session, _: session.count("loaded:*", follow=True),
    "time": lambda session, spec: session.time(spec, follow=True),
    "handler": by_handler,
}


@pytest.mark.parametrize("way", WAYS)
def test_cycles_count_on_and_leave_nothing(program, way):
    """Lives of a library, each counted whole, in one row; neither code, counters nor the memory map grow."""
    with anyprobe.attach(program.pid) as session:
        WAYS[way](session, "loaded:plugin_work")
        program("c")
        before = used(session)
        program("ccc")
        session.pump(0)
        assert used(session) == before
        found = session.snapshot()
        if way == "count":
            (site,) = found.sites
            assert site.hits == 4 * 50 * (IN_ONE_LIFE + 10)
        if way == "time":
            (function,) = found.functions
            assert function.count == 4 * 50 * (IN_ONE_LIFE + 10)
    program("lwu")


def used(session):
    """Return what a session has of its program's memory, while nothing is loaded."""
    holdings = session.splicing.holdings
    cursors = [each.cursor for each in holdings.code_regions]
    left = [(each.layout.counters_left(), each.layout.records_left()) for each in holdings.banks]
    return cursors, left, mapped(session.pid)


def test_only_what_is_new_is_looked_at(program, monkeypatch):
    """What a look costs does not grow with what is loaded already."""
    asked, resolve = [], ModuleReconciler.resolve

    def asking(session, spec, within=None):
        asked.append(within)
        return resolve(session, spec, within)

    monkeypatch.setattr(ModuleReconciler, "resolve", asking)
    with anyprobe.attach(program.pid) as session:
        session.count("*:plugin_work", follow=True)
        assert asked == [None]
        program("l")
        assert [len(each) for each in asked[1:]] == [1]
        assert session.snapshot().hits == IN_ONE_LIFE
    program("u")


def mapped(pid):
    """Return how many mappings a process has."""
    with open(f"/proc/{pid}/maps") as lines:
        return sum(1 for _ in lines)


@pytest.mark.parametrize("way", ["l", "z", "t", "m"], ids=["now", "lazy", "thread", "namespace"])
def test_functions_that_the_loader_chooses_are_placed_as_it_does(program, way):
    """From their first call on, in each life; nothing is chosen yet when the loader tells of the library."""
    with anyprobe.attach(program.pid) as session:
        (probe,) = session.count("loaded:chosen", follow=True)
        for life in range(1, 4):
            program(way)
            assert (probe.armed, probe.refused) == (True, [])
            assert session.snapshot().hits == life * AT_LOAD
            program("u")
        assert session.warnings == []


def test_choices_in_many_lives_leave_nothing(program):
    """The code by which threads wait there is the same in each."""
    with anyprobe.attach(program.pid) as session:
        session.count("loaded:chosen", follow=True)
        program("c")
        before = used(session)
        program("ccc")
        session.pump(0)
        assert used(session) == before
        assert session.snapshot().hits == 4 * 50 * AT_LOAD


def test_what_cannot_be_placed_as_it_is_chosen_is_placed_later_and_that_is_said():
    """A function that ends in another one's choice."""
    indirect = 'static int (*ask(void))(int) { __asm__ volatile(""); return sum ? two : one; }\n'
    text = LIBRARY.replace(
        "static int (*choose(void))(int) { plugin_work(1); return sum ? two : one; }", indirect + TAIL
    )
    program = build("loads.c", "-O1", "-pthread", "-ldl", text=PROGRAM)
    library = build("asks.c", "-shared", "-fPIC", "-O1", "-fno-builtin", text=text)
    with told(program, library) as do, anyprobe.attach(do.pid) as session:
        (probe,) = session.count("asks:chosen", follow=True)
        do("l")
        (warning,) = session.warnings
        assert warning.startswith("one function that the loader chooses (IFUNC) could not be placed as it did")
        session.pump(1.0)
        assert (probe.armed, probe.refused) == (True, [])


TAIL = """
__attribute__((naked)) static int (*choose(void))(int) { __asm__("jmp ask"); }
static void *keep __attribute__((used)) = (void *)ask;
"""
ONLY_BY_NAME = """
static volatile int kind;
static int one(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
static int two(int n) { __asm__ volatile("" : "+r"(n)); return n + 2; }
static int (*choose(void))(int) { return kind ? two : one; }
int plugin_work(int n) __attribute__((ifunc("choose")));
"""


def test_a_choice_that_no_slot_tells_of(tmp_path):
    """The program asks for the function by its name (``dlsym``), and nobody else calls it."""
    program = build("loads.c", "-O1", "-pthread", "-ldl", text=PROGRAM)
    library = build("byname.c", "-shared", "-fPIC", "-O1", text=ONLY_BY_NAME)
    with told(program, library) as do, anyprobe.attach(do.pid) as session:
        session.count("byname:plugin_work", follow=True)
        for life in range(1, 4):
            do("lww")
            assert session.snapshot().hits == life * 2 * CALLS
            do("u")
        assert session.warnings == []


PLAIN = (
    LIBRARY.partition("static int one")[0]
    + """
__attribute__((constructor)) static void begin(void) { for (int n = 0; n < 101; n++) plugin_work(n); }
"""
)


@pytest.fixture
def musl_files():
    if not shutil.which("musl-gcc"):
        pytest.skip("needs musl-gcc")
    library = build("loadedmusl.c", "-shared", "-fPIC", "-O1", compiler="musl-gcc", text=PLAIN)
    text = PROGRAM.replace("dlmopen(LM_ID_NEWLM, ", "dlopen(")
    return build("loadsmusl.c", "-O1", "-ldl", compiler="musl-gcc", text=text), library


@pytest.mark.parametrize("way", ["l", "t"], ids=["here", "thread"])
def test_musls_loader_is_waited_for_too(musl_files, way):
    """Its one library is the loader, under whatever name; what is unloaded stays."""
    with subprocess.Popen([*musl_files], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            with anyprobe.attach(process.pid, pending="modules") as session:
                (probe,) = session.count("loadedmusl:plugin_work")
                for letter in (way, "w"):
                    process.stdin.write(letter + "\n")
                    process.stdin.flush()
                    assert process.stdout.readline() == "done\n"
                assert probe.armed
                assert session.snapshot().hits == IN_ONE_LIFE + CALLS
                assert session.warnings == []
        finally:
            process.kill()


def loaded_when_started(command, spec):
    """Start a program that loads something, works with it and unloads it; return the hits."""
    reads, writes = os.pipe()
    with anyprobe.run([str(each) for each in command], stdin=reads, stdout=subprocess.DEVNULL) as session:
        os.close(reads)
        session.count(spec, follow=True)
        session.resume()
        with open(writes, "wb") as commands:
            commands.write(b"l\nw\nu\n")
        assert session.wait(PATIENCE) == 0
        assert session.warnings == []
        return session.snapshot().hits


def test_a_program_of_musl_that_is_started(musl_files):
    assert loaded_when_started(musl_files, "loadedmusl:plugin_work") == IN_ONE_LIFE + CALLS


@pytest.mark.parametrize("name", ["libc.so", "ld-musl-x86_64.so.1"], ids=["debian", "alpine"])
@pytest.mark.parametrize("spec", ["plugin_work", "loadedmusl:plugin_work"])
def test_libraries_that_a_program_of_musl_is_linked_with(musl_files, tmp_path, name, spec):
    """musl maps them after it has begun to run."""
    library = musl_files[1]
    shutil.copy("/lib/ld-musl-x86_64.so.1", tmp_path / name)
    shutil.copy(library, tmp_path / "libloadedmusl.so")
    linked = ("-L", str(tmp_path), "-lloadedmusl", f"-Wl,-rpath,{tmp_path},--dynamic-linker={tmp_path / name}")
    text = "int plugin_work(int); int main(void) { for (int n = 0; n < 1000; n++) plugin_work(n); return 0; }"
    program = build("linkedmusl.c", *linked, compiler="musl-gcc", text=text)
    with anyprobe.run([str(program)]) as session:
        session.count(spec.replace("loaded", "libloaded"))
        assert session.wait(PATIENCE) == 0
        assert session.snapshot().hits == IN_ONE_LIFE + CALLS


def test_a_program_that_the_loader_is_given_as_an_argument(files):
    loader = "/lib64/ld-linux-x86-64.so.2"
    assert loaded_when_started([loader, *files], "loaded:plugin_work") == IN_ONE_LIFE + CALLS + 10


def test_a_loader_without_symbols_under_another_name(files, tmp_path):
    """It exports what is needed."""
    loader = tmp_path / "ld.so"
    shutil.copy("/lib64/ld-linux-x86-64.so.2", loader)
    subprocess.run(["strip", loader], check=True)
    program = build("loads.c", "-O1", "-pthread", "-ldl", f"-Wl,--dynamic-linker={loader}", text=PROGRAM)
    assert loaded_when_started([program, files[1]], "loaded:plugin_work") == IN_ONE_LIFE + CALLS + 10


def test_a_started_program(files):
    reads, writes = os.pipe()
    with anyprobe.run([str(each) for each in files], stdin=reads, stdout=subprocess.DEVNULL) as session:
        os.close(reads)
        session.count("loaded:plugin_work", follow=True)
        session.resume()
        with open(writes, "wb") as commands:
            commands.write(b"l\nw\nu\n")
        assert session.wait(PATIENCE) == 0
        assert session.snapshot().hits == IN_ONE_LIFE + CALLS + 10


def test_a_program_without_a_loader_is_looked_at_now_and_then(run_target):
    target = run_target("static_program.c", options=("-static",))
    with anyprobe.attach(target.pid) as session:
        session.count("libnothing:*", follow=True)
        assert any("five times a second" in warning for warning in session.warnings)
    target.finish()


@pytest.mark.parametrize("command", ["count", "time"])
def test_commands_follow_what_is_loaded(program, command):
    """``--pending``: a spec may mean nothing yet, which is said if it stays so."""
    specs = ["loaded:plugin_work", "libneverloaded:*"]
    started = subprocess.Popen(
        [sys.executable, "-m", "anyprobe", command, *specs, "--pending", "--json", "-p", str(program.pid)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with started:
        wait_until(lambda: is_gated(program.pid), "the gate")
        program("lwu")
        started.send_signal(signal.SIGINT)
        document, said = started.communicate(timeout=PATIENCE)
    found = json.loads(document)
    assert "libneverloaded:* is pending: no libneverloaded has been loaded" in "".join(found["warnings"]) + said
    if command == "count":
        assert sum(site["hits"] for site in found["sites"]) == IN_ONE_LIFE + CALLS + 10
    else:
        assert sum(function["count"] for function in found["functions"]) == IN_ONE_LIFE + CALLS + 10


COMMANDS = {
    "count": ["count"],
    "condition": ["count", "--when", "i32(arg0) >= 0"],
    "time": ["time"],
    "timed condition": ["time", "--when", "i32(arg0) >= 0"],
    "hist": ["hist", "--of", "arg0"],
    "trace": ["trace"],
}


@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_spec_that_names_a_module_waits_for_it_unasked(program, command):
    """Counted, timed, aggregated and traced from the library's constructors on; until then the module is named."""
    with commanded(program.pid, *COMMANDS[command], "loaded:plugin_work", "libneverloaded:x") as started:
        wait_until(lambda: is_gated(program.pid), "the gate")
        program("lwu")
        started.send_signal(signal.SIGINT)
        shown, said = started.communicate(timeout=PATIENCE)
    assert started.returncode == 130, said
    assert "libneverloaded:x is pending: no libneverloaded has been loaded" in said
    if command == "trace":
        assert shown.count(":plugin_work(") == IN_ONE_LIFE + CALLS + 10
        return
    found = json.loads(shown)
    assert found["pending"] == [{"spec": "libneverloaded:x", "module": "libneverloaded"}]
    if command == "hist":
        assert found["aggregations"]["arg0"]["count"] == IN_ONE_LIFE + CALLS + 10
    elif "time" in command:
        assert sum(each["count"] for each in found["functions"]) == IN_ONE_LIFE + CALLS + 10
    else:
        assert sum(each["hits"] for each in found["sites"]) == IN_ONE_LIFE + CALLS + 10


@contextmanager
def commanded(pid, *arguments):
    document = [] if arguments[0] == "trace" else ["--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "anyprobe", *arguments, *document, "-p", str(pid)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        try:
            yield started
        finally:
            started.kill()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["count", "--no-pending", "loaded:plugin_work"], "no module 'loaded' is loaded"),
        (["hist", "--of", "arg0", "--no-pending", "loaded:plugin_work"], "no module 'loaded' is loaded"),
        (["count", "plugin_wrok"], "no function 'plugin_wrok' in any of the loaded modules"),
        (["count", "libc:plugin_work"], "no function 'plugin_work' in libc.so.6"),
        (["count", "*:plugin_work"], "no function 'plugin_work' in any of the loaded modules"),
    ],
)
def test_what_cannot_come_is_a_mistake_at_once(program, arguments, told):
    with commanded(program.pid, *arguments) as started:
        _, said = started.communicate(timeout=PATIENCE)
    assert (started.returncode, told in said) == (2, True), said


def test_a_pattern_of_modules_waits_too_and_similar_names_are_shown(program):
    with anyprobe.attach(program.pid, pending="modules") as session:
        session.count("load*:plugin_work")
        session.count("libcc:malloc")
        (one, other) = session.snapshot().pending
        assert (one.spec, one.module, other.nearest[0]) == ("load*:plugin_work", "load*", "libc")
        program("l")
        assert session.snapshot().pending == (other,)
        assert session.snapshot().hits == IN_ONE_LIFE


def test_specs_that_are_placed_together_hold_no_thread_until_all_are_there(program):
    """Others are compiled meanwhile, which may take longer than threads wait; what was loaded then is found at once."""
    with anyprobe.attach(program.pid, pending="modules") as session:
        with session.host.arming.placing_once():
            (early,) = session.count("loaded:plugin_work")
            assert not is_gated(program.pid)
            program("l")
            session.count("libneverloaded:x")
        assert is_gated(program.pid)
        assert early.armed
        program("w")
        assert session.snapshot().hits == CALLS
        assert [each.spec for each in session.snapshot().pending] == ["libneverloaded:x"]


def test_a_started_program_waits_for_a_module_unasked(files):
    reads, writes = os.pipe()
    with anyprobe.run(
        [str(each) for each in files], stdin=reads, stdout=subprocess.DEVNULL, pending="modules"
    ) as session:
        os.close(reads)
        session.count("loaded:plugin_work", "libc:puts")
        session.resume()
        with open(writes, "wb") as commands:
            commands.write(b"l\nw\nu\n")
        assert session.wait(PATIENCE) == 0
        hits = {site.function: site.hits for site in session.snapshot().sites}
        assert hits == {"plugin_work": IN_ONE_LIFE + CALLS + 10, "puts": 4}


@pytest.mark.parametrize("follow", [[], ["--follow"]], ids=["", "follow"])
def test_programs_that_are_executed_wait_for_modules_too(files, follow):
    """The first one, a shell, loads none, and that is not said where another has loaded it."""
    program, library = files
    script = f"printf 'l\\nw\\nu\\n' | {program} {library}; true"
    arguments = ["count", *follow, "--json", "loaded:plugin_work", "--", "sh", "-c", script]
    command = [sys.executable, "-m", "anyprobe", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    said, brace, document = ended.stderr.partition("{")
    assert brace, said
    found = json.loads(brace + document)
    assert sum(site["hits"] for site in found["sites"]) == IN_ONE_LIFE + CALLS + AT_UNLOAD
    assert "pending" not in found
    assert "is pending" not in said


def test_handlers_follow_what_is_loaded(program):
    """At entries, at both ends of calls, and under conditions: from the constructors on, through several lives."""
    with anyprobe.attach(program.pid) as session:
        entered, called, chosen = Count("entered"), Sum("called"), Count("chosen")

        @session.entry("loaded:plugin_work", follow=True)
        def enter(n: i32):
            entered.add()

        @session.call("loaded:plugin_work", retval=i32, follow=True)
        def begin(ctx, n: i32):
            ctx.data.n = n

        @begin.ret
        def end(ctx):
            called.add(ctx.retval - ctx.data.n)

        @session.entry("loaded:plugin_work", follow=True, when=lambda n: i32(n) < 10)
        def few(n: i32):
            chosen.add()

        for life in range(1, 3):
            program("lwu")
            found = {each.name: each.total for each in session.snapshot().aggregations}
            assert found["entered"].count == life * (IN_ONE_LIFE + CALLS + 10)
            assert found["called"].sum == life * (IN_ONE_LIFE + CALLS + 10)
            assert 0 < found["chosen"].count < found["entered"].count
        with pytest.raises(anyprobe.SpecError):
            session.entry("loaded:plugin_work", handler=enter)
