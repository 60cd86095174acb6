"""Libraries that were there when probes were placed, are unloaded, and loaded again: nothing asks them to follow."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

import anyprobe
from anyprobe import Sum, i32
from anyprobe.probes.providers.function.gates.load_gate import PATIENCE as WAITED
from anyprobe.target.system import procfs
from support.driver import PATIENCE, build, wait_until
from support.plugins import PROGRAM, is_gated, loading, told
from support.seen_probes import is_probed

pytestmark = pytest.mark.live
AT_LOAD, CALLS, MIB = 10, 1000, 1 << 20
LIBRARY = """
__attribute__((noinline)) int plugin_work(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
__attribute__((constructor)) static void begin(void) { for (int n = 0; n < 10; n++) plugin_work(1); }
"""


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "again.so"
    shutil.copy(build("again.c", "-shared", "-fPIC", "-O1", text=LIBRARY), path)
    return path


@pytest.fixture
def program(library):
    with loading(library) as do:
        do("l")
        yield do


@pytest.mark.parametrize("live", [False, True], ids=["stops", "live"])
@pytest.mark.parametrize("spec", ["again:plugin_work", "again:*", "*:plugin_work"])
def test_a_library_that_comes_again_counts_on(program, spec, live):
    """From its constructor on, and nobody has to look in time."""
    with anyprobe.attach(program.pid, live=live) as session:
        session.count(spec)
        program("w")
        for life in range(1, 4):
            program("u")
            found = [each for each in session.snapshot().sites if each.function == "plugin_work"]
            assert not any(each.armed for each in found)
            program("lw")
            found = [each for each in session.snapshot().sites if each.function == "plugin_work"]
            assert sum(each.hits for each in found) == CALLS + life * (AT_LOAD + CALLS)
            assert sum(each.armed for each in found) == 1
        assert session.warnings == []
    assert not is_gated(program.pid)


def test_it_is_timed_and_handled_again(program):
    with anyprobe.attach(program.pid) as session:
        total = Sum("arguments")
        session.time("again:plugin_work")
        session.entry("again:plugin_work")(lambda arg0: total.add(i32(arg0)))
        for life in range(3):
            found = session.snapshot()
            assert sum(each.count for each in found.functions) == life * AT_LOAD
            assert found.aggregations[0].total.count == life * AT_LOAD
            program("ul")


def test_another_library_does_not_come_again(library, tmp_path):
    """What was not there is not meant, were it at the same place."""
    link = tmp_path / "link.so"
    link.symlink_to(library)
    with loading(link) as program:
        program("l")
        with anyprobe.attach(program.pid) as session:
            session.count("*:plugin_work")
            link.unlink()
            link.symlink_to(build("another.c", "-shared", "-fPIC", "-O1", text=LIBRARY))
            program("ulw")
            assert session.snapshot().hits == 0
            link.unlink()
            link.symlink_to(library)
            program("ulw")
            assert session.snapshot().hits == AT_LOAD + CALLS


def test_a_library_that_was_replaced_on_the_disk_meanwhile(program, library, tmp_path):
    """As packages are upgraded: its functions are elsewhere in the new file, and all of one name are one row or two."""
    with anyprobe.attach(program.pid) as session:
        session.count("again:plugin_work")
        program("w")
        newer = 'int plugin_before(int n) { __asm__ volatile("" : "+r"(n)); return n * 3; }' + LIBRARY
        shutil.copy(build("again_newer.c", "-shared", "-fPIC", "-O1", text=newer), tmp_path / "newer")
        os.rename(tmp_path / "newer", library)
        program("w")
        assert session.snapshot().hits == 2 * CALLS
        program("ulw")
        found = session.snapshot()
        assert found.hits == 3 * CALLS + AT_LOAD
        assert {each.function for each in found.sites} == {"plugin_work"}


def test_only_what_may_be_unloaded_holds_threads(program):
    with anyprobe.attach(program.pid) as session:
        session.count("libc:puts", "a.out:main")
        assert not is_gated(program.pid)
        session.count("again:plugin_work")
        assert is_gated(program.pid)


FORKING = """
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static void work(void *library) {
    int (*function)(int) = (int (*)(int))dlsym(library, "plugin_work");
    for (int n = 0; n < 1000; n++) function(n);
}
int main(int argc, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW);
    (void)argc;
    puts("ready"); fflush(stdout);
    for (int c; (c = getchar()) != EOF;) {
        if (c == '\\n') continue;
        if (!fork()) {
            work(library);
            for (int life = 0; life < 3; life++) { dlclose(library); work(library = dlopen(argv[1], RTLD_NOW)); }
            _exit(0);
        }
        wait(0);
        work(library);
        puts("done"); fflush(stdout);
    }
}
"""


def test_fork_children_in_which_it_comes_again(library):
    """While their parent still has it."""
    program = build("forks_with_plugin.c", "-ldl", text=FORKING)
    with told(program, library) as do, anyprobe.attach(do.pid) as session:
        session.count("again:plugin_work")
        for forks in range(1, 3):
            do(".")
            session.pump(0)
            found = session.snapshot()
            assert found.hits == forks * (CALLS + CALLS + 3 * (AT_LOAD + CALLS))
        assert len(found.processes) == 3


FILTERED = """
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
static void filter(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
"""


@pytest.mark.root
def test_where_no_thread_can_wait_that_is_said_once_it_is_of_consequence(library):
    """It counts again from the next look on."""
    text = FILTERED + PROGRAM.replace('puts("ready")', 'filter(); puts("ready")')
    with told(build("loads_filtered.c", "-ldl", text=text), library) as do:
        do("l")
        with anyprobe.attach(do.pid) as session:
            session.count("again:plugin_work")
            assert session.snapshot().warnings == ()
            do("u")
            session.pump(0.3)
            (warning,) = session.snapshot().warnings
            assert warning.startswith("again.so: unloaded, and looked for five times a second")
            do("l")
            session.pump(0.3)
            do("w")
            assert session.snapshot().hits == CALLS
            assert session.snapshot().warnings == (warning,)
            do("ul")  # between two looks, and to the same address
            session.pump(0.3)
            do("w")
            assert session.snapshot().hits == CALLS
            assert any("written the original bytes over the probe" in each for each in session.snapshot().warnings)


def test_many_lives_take_no_memory(program):
    """Of the program's, in code, counters and mappings, and of the controller's."""
    with anyprobe.attach(program.pid) as session:
        session.count("again:plugin_work")
        program("ulw" * 50)
        gc.collect()  # what other tests have left, too
        mapped, resident = size_of(program.pid), resident_of(os.getpid())
        program("ulw" * 250)
        assert size_of(program.pid) == mapped
        gc.collect()
        assert resident_of(os.getpid()) < resident + 4 * MIB
        assert session.snapshot().hits == 300 * (AT_LOAD + CALLS)
        assert session.warnings == []


def size_of(pid):
    """Return how many mappings a process has, and how many bytes these take."""
    maps = procfs.read_mappings(pid)
    return len(maps), sum(each.end - each.start for each in maps)


def resident_of(pid):
    with open(f"/proc/{pid}/statm") as numbers:
        return int(numbers.read().split()[1]) * 4096


@contextmanager
def counting(program, *options):
    """Run the command on a program, to be ended by a signal; what it is for is there once it is yielded."""
    arguments = ["-m", "anyprobe", "count", "again:plugin_work", *options, "--json", "-p", str(program.pid)]
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as command:
        try:
            wait_until(lambda: is_probed(program.pid, "plugin_work"), "the probe")
            yield command
        finally:
            command.kill()


def results_of(command):
    command.send_signal(signal.SIGINT)
    return json.loads(command.communicate(timeout=PATIENCE)[0])


def test_the_command_shows_one_row_that_counts_on(program):
    with counting(program) as command:
        wait_until(lambda: is_gated(program.pid), "the gate")
        program("wulw")
        found = results_of(command)
    assert (sum(each["hits"] for each in found["sites"]), found.get("warnings")) == (2 * CALLS + AT_LOAD, None)
    assert "pending" not in found


def test_no_thread_waits_where_that_is_not_wanted(program):
    """Nothing is probed then that comes again."""
    with anyprobe.attach(program.pid) as session:
        session.count("again:plugin_work", follow=False)
        assert not is_gated(program.pid)
        program("wulw")
        assert session.snapshot().hits == CALLS
    with counting(program, "--no-pending") as command:
        program("w")
        assert not is_gated(program.pid)
        assert sum(each["hits"] for each in results_of(command)["sites"]) == CALLS


def test_a_stopped_controller_holds_one_thread_once(program):
    """For some seconds; others go on, which is said, and wait again once it is awake."""
    with counting(program) as command:
        wait_until(lambda: is_gated(program.pid), "the gate")
        command.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        program("ulw" * 20)
        assert time.monotonic() - begin < 4 * WAITED
        command.send_signal(signal.SIGCONT)
        wait_until(lambda: program("ul") or is_probed(program.pid, "plugin_work"), "the probe in what has come")
        program("ulw")
        found = results_of(command)
    assert sum(each["hits"] for each in found["sites"]) >= CALLS + AT_LOAD
    assert any("in time: what runs there before is not counted" in each for each in found["warnings"])


def test_probes_that_were_removed_stay_so(program):
    """In each life, until they are enabled again; then they are in the one of now, too."""
    with anyprobe.attach(program.pid) as session:
        removed = session.count("again:plugin_work")
        other = session.count("again:plugin_*")
        program("w")
        session.remove(*removed)
        program("ulw")
        assert [each.hits for each in session.snapshot().sites] == [CALLS, 2 * CALLS + AT_LOAD]
        session.remove(*other)
        program("ulwul")
        session.enable(*removed)
        program("w")
        assert [each.hits for each in session.snapshot().sites] == [2 * CALLS, 2 * CALLS + AT_LOAD]


def test_what_costs_too_much_does_not_come_again(program):
    with anyprobe.attach(program.pid) as session:
        session.count("again:plugin_*")
        session.limit_overhead(0.0)
        program("w" * 20)
        assert session.limit_overhead(1e-9)
        program("ulw")
        assert session.snapshot().hits == 20 * CALLS


def test_two_libraries_of_one_name(library, tmp_path):
    """Each comes again by itself."""
    other = tmp_path / "other" / library.name
    other.parent.mkdir()
    shutil.copy(library, other)
    text = PROGRAM.replace("void *library = 0;", "void *library = 0; dlopen(argv[2], RTLD_NOW);")
    with told(build("loads_two.c", "-ldl", text=text), library, other) as do:
        do("l")
        with anyprobe.attach(do.pid) as session:
            session.count("again:plugin_work")
            for life in range(1, 4):
                do("ulw")
                assert session.snapshot().hits == life * (AT_LOAD + CALLS)


WORKS = "            work(library);\n            for"


def test_fork_children_that_load_again_what_their_parent_had_unloaded(library):
    text = FORKING.replace("if (!fork()) {", "dlclose(library);\n        if (!fork()) {").replace(
        WORKS, "            for"
    )
    text = text.replace("life < 3; life++) { dlclose(library);", "life < 3; life++) { if (life) dlclose(library);")
    text = text.replace("wait(0);\n        work(library);", "wait(0);\n        library = dlopen(argv[1], RTLD_NOW);")
    program = build("forks_without_plugin.c", "-ldl", text=text)
    with told(program, library) as do, anyprobe.attach(do.pid) as session:
        session.count("again:plugin_work")
        for forks in range(1, 3):
            do(".")
            session.pump(0)
            assert session.snapshot().hits == forks * (3 * (AT_LOAD + CALLS) + AT_LOAD)


IN_MEMORY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
static void *from_memory(const char *path) {
    char bytes[65536], name[64];
    int file = open(path, O_RDONLY), memory = memfd_create("plugin", 0);
    for (ssize_t n; (n = read(file, bytes, sizeof bytes)) > 0;) if (write(memory, bytes, n) != n) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", memory);
    void *library = dlopen(name, RTLD_NOW);
    close(memory), close(file);
    return library;
}
#define dlopen(path, mode) from_memory(path)
"""


@pytest.mark.root
@pytest.mark.parametrize("spec", ["memfd:plugin:plugin_work", "memfd:plug*:plugin_*", '"memfd:plugin":plugin_work'])
@pytest.mark.parametrize("when", ["there", "later"])
def test_a_library_from_memory(library, spec, when):
    """Its file has no name any more, and another one comes each time."""
    text = PROGRAM.replace("int main", IN_MEMORY + "int main")
    with told(build("loads_from_memory.c", "-ldl", text=text), library) as do:
        do("l" if when == "there" else "")
        with anyprobe.attach(do.pid, pending="modules") as session:
            session.count(spec)
            do("w" if when == "there" else "lw")
            before = 0 if when == "there" else AT_LOAD
            assert session.snapshot().hits == before + CALLS
            do("ulw")
            assert session.snapshot().hits == before + CALLS + AT_LOAD + CALLS
            assert session.warnings == []


@pytest.mark.root
def test_a_library_whose_file_was_deleted(program, library):
    """Probes are placed in what is mapped, and in the file that is there when it is loaded again."""
    shutil.copy(library, f"{library}.copy")
    os.remove(library)
    with anyprobe.attach(program.pid) as session:
        session.count("again:plugin_work")
        program("w")
        assert session.snapshot().hits == CALLS
        os.rename(f"{library}.copy", library)
        program("ulw")
        assert session.snapshot().hits == 2 * CALLS + AT_LOAD
