"""Two C libraries in one process: auditors of the loader, and ``dlmopen``."""

import os
import subprocess

import pytest

import anyprobe
from support.driver import build, wait_until
from support.results import hits

PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    void *(*other)(size_t) = 0;
    void (*let_go)(void *) = 0;
    char byte;
    if (strchr(argv[1], 'w')) {
        if (write(1, "ready\\n", 6) != 6 || read(0, &byte, 1) != 1) return 1;
    }
    if (strchr(argv[1], 'n')) {
        void *library = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
        if (!library) return 2;
        other = (void *(*)(size_t))dlsym(library, "malloc");
        let_go = (void (*)(void *))dlsym(library, "free");
    }
    for (int round = 0; round < 1 + !!strchr(argv[1], 'w'); round++) {
        for (int i = 0; i < 1000; i++) {
            void *volatile place = malloc(30);
            free(place);
        }
        for (int i = 0; other && i < 100; i++) {
            void *volatile place = other(30);
            let_go(place);
        }
        if (strchr(argv[1], 'w') && (write(1, "done\\n", 5) != 5 || read(0, &byte, 1) != 1)) return 3;
    }
    return 42;
}
"""
AUDITOR = """
#define _GNU_SOURCE
#include <link.h>
#include <stdlib.h>
#include <stdint.h>
unsigned la_version(unsigned version) { return LAV_CURRENT; }
unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
    void *volatile place = malloc(10);
    free(place);
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
Elf64_Addr la_x86_64_gnu_pltenter(Elf64_Sym *symbol, unsigned index, uintptr_t *from, uintptr_t *to,
                                  La_x86_64_regs *registers, unsigned *flags, const char *name, long *size) {
    void *volatile place = malloc(10);
    free(place);
    return symbol->st_value;
}
"""


@pytest.fixture
def program():
    return str(build("copies.c", "-Wl,-z,lazy", text=PROGRAM))


@pytest.fixture
def audited():
    return {"LD_AUDIT": str(build("auditor.c", "-shared", "-fPIC", text=AUDITOR))}


def by_copy(snapshot, function):
    """Return the hits of a function by the place of its library, which the notes say."""
    found = {site.notes[-1]: site.hits for site in snapshot.sites if site.function == function}
    assert all(note.startswith("copy at 0x") for note in found)
    return found


def test_a_started_program_with_an_auditor(program, audited):
    """What the auditor calls goes to its own library."""
    with anyprobe.run([program, "-"], env=audited) as session:
        session.count("libc:malloc", "auditor:la_*")
        session.resume()
        assert os.waitstatus_to_exitcode(session.wait(180)) == 42
        snapshot = session.snapshot()
    entered = hits(snapshot, "la_x86_64_gnu_pltenter")
    assert entered >= 2000
    assert sorted(by_copy(snapshot, "malloc").values()) in ([1000, entered], [entered, 1000])
    assert "the loader has auditors (LD_AUDIT)" in snapshot.warnings[0]


def test_a_running_program_with_an_auditor(program, audited):
    with subprocess.Popen([program, "w"], env=audited, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        with anyprobe.attach(process.pid) as session:
            session.count("libc:malloc", "auditor:la_*")
            session.time("libc:free")
            process.stdin.write(b"x")
            process.stdin.flush()
            assert process.stdout.readline() == b"done\n"

            def agree():
                """It goes on to where it reads what comes next, by a call that is audited, too."""
                snapshot = session.snapshot()
                entered = hits(snapshot, "la_x86_64_gnu_pltenter")
                ended = sorted(each.count for each in snapshot.functions)
                return sorted(by_copy(snapshot, "malloc").values()) == ended == [1000, entered]

            wait_until(agree, "all calls have ended")
        process.communicate(b"xx")
        assert process.returncode == 42


def test_a_library_that_is_loaded_once_more_later(program):
    """It is not probed, and that is said; what is probed from there on, is."""
    with subprocess.Popen([program, "wn"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        with anyprobe.attach(process.pid) as session:
            (probe,) = session.count("libc:malloc")
            process.stdin.write(b"x")
            process.stdin.flush()
            assert process.stdout.readline() == b"done\n"
            snapshot = session.snapshot()
            (site,) = snapshot.sites
            assert site.hits >= 1000
            assert "a further copy of libc.so.6 after the probes were placed" in snapshot.warnings[0]
            assert session.snapshot().warnings == snapshot.warnings
            session.remove(probe)
            session.count("libc:malloc")
            process.stdin.write(b"x")
            process.stdin.flush()
            assert process.stdout.readline() == b"done\n"
            fresh = by_copy(session.snapshot(), "malloc")
            assert min(fresh.values()) == 100
        process.communicate(b"x")
        assert process.returncode == 42
