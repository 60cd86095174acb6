"""Libraries that earlier sessions saw being loaded are read before a program loads them, if they are still the same."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

import anyprobe
from anyprobe.binary.objects.elf import ElfFile
from anyprobe.core import kept
from anyprobe.probes.providers.function import expected
from support.driver import build
from support.plugins import told

pytestmark = pytest.mark.live
LIBRARY = """
__attribute__((noinline)) int plugin_work(int n) { __asm__ volatile("" : "+r"(n)); return n + ADDED; }
__attribute__((noinline)) int plugin_more(int n) { __asm__ volatile("" : "+r"(n)); return n - 1; }
__attribute__((constructor)) static void begin(void) { for (int n = 0; n < TIMES; n++) plugin_work(plugin_more(n)); }
"""
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int c;
    puts("ready"); fflush(stdout);
    while ((c = getchar()) != EOF) {
        if (c == 'l' && argc > 1) puts(dlopen(argv[1], RTLD_NOW) ? "done" : "failed");
        fflush(stdout);
    }
    return 0;
}
"""
SPECS = ["libexpected:plugin_*", "libexpec*:plugin_work"]
TIMES = 100


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def library(tmp_path):
    return shutil.copy(made("expected.c", added=1), tmp_path / "libexpected.so")


def made(name, *, added):
    return build(name, "-shared", "-fPIC", "-O1", f"-DADDED={added}", f"-DTIMES={TIMES * added}", text=LIBRARY)


@contextmanager
def counting(library, spec):
    """Give a program that loads a library when it is told to, while calls in it are counted."""
    program = build("loads_expected.c", "-O1", "-ldl", text=PROGRAM)
    with told(program, str(library)) as do, anyprobe.attach(do.pid) as session:
        session.count(spec, follow=True)
        yield do, session


@pytest.fixture
def opened(monkeypatch):
    """The files that were opened."""
    paths, original = [], ElfFile.open
    monkeypatch.setattr(ElfFile, "open", lambda path, *rest: (paths.append(path), original(path, *rest))[1])
    return paths


@pytest.mark.parametrize("spec", SPECS)
def test_what_was_loaded_before_is_read_before_it_is_loaded_again(library, spec, opened):
    hits = TIMES * (1 + (spec == SPECS[0]))
    for known in (False, True):
        opened.clear()
        with counting(library, spec) as (do, session):
            assert (str(library) in opened) == known
            opened.clear()
            do("l")
            assert session.snapshot().hits == hits
            assert (str(library) in opened) != known
    assert expected.paths() == [str(library)]


def test_what_has_changed_since_is_read_as_it_is(library, opened):
    with counting(library, SPECS[0]) as (do, session):
        do("l")
        assert session.snapshot().hits == 2 * TIMES
    with counting(library, SPECS[0]) as (do, session):
        assert str(library) in opened
        Path(library).unlink()
        shutil.copy(made("expected_other.c", added=3), library)
        do("l")
        assert session.snapshot().hits == 6 * TIMES


def test_what_is_gone_or_damaged_is_not_expected(library):
    with counting(library, SPECS[0]) as (do, session):
        do("l")
        assert session.snapshot().hits == 2 * TIMES
    other = Path(library).with_name("libexpected_else.so")
    other.write_bytes(b"\x7fELF")
    expected.note([str(other), str(other.with_name("libexpected_none.so"))])
    with counting(library, SPECS[0]) as (do, session):
        do("l")
        assert session.snapshot().hits == 2 * TIMES


def test_a_library_that_nobody_has_asked_about_is_left_alone(library, opened):
    with counting(library, SPECS[0]) as (do, _):
        do("l")
    opened.clear()
    with counting(library, "another:plugin_*"):
        assert str(library) not in opened


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, null]", b"\xff", b"[" * 100_000])
def test_a_list_that_makes_no_sense_is_none(content):
    assert kept.write(expected._NAME, content)
    assert expected.paths() == []
    expected.note(["/lib/one.so"])
    assert expected.paths() == ["/lib/one.so"]


def test_the_last_ones_are_kept_once_and_what_has_no_name_is_not():
    for number in range(expected._MOST + 10):
        expected.note([f"/lib/{number}.so", "/lib/deleted.so (deleted)", "[vdso]"])
    found = expected.paths()
    assert found == [f"/lib/{number}.so" for number in range(expected._MOST + 9, 9, -1)]
    expected.note(found[5:6])
    assert expected.paths() == found
