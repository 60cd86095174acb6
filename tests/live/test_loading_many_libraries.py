"""A program that loads many libraries, all of which stay: what has been there before costs next to nothing."""

import shutil
import subprocess
import threading

import pytest

import anyprobe
from support.results import hits

pytestmark = pytest.mark.live
PATIENCE, CALLS = 180, 3
FEW, MANY = 20, 120
LIBRARY = """
static volatile int number;
__attribute__((noinline)) void plug_work(void) { number++; __asm__ volatile("nop;nop;nop;nop"); }
void plug_run(void) { for (int n = 0; n < 3; n++) plug_work(); }
"""
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    char path[4096];
    for (int n = 0; n < atoi(argv[2]); n++) {
        snprintf(path, sizeof path, "%s/plug%d.so", argv[1], n);
        void *library = dlopen(path, RTLD_NOW);
        if (!library) return puts(dlerror()), 1;
        ((void (*)(void))dlsym(library, "plug_run"))();
    }
    return argc != 3;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    for name, source, options in (("plug0.so", LIBRARY, ["-shared", "-fPIC"]), ("host", PROGRAM, ["-ldl"])):
        (folder / f"{name}.c").write_text(source)
        subprocess.run(["cc", "-O1", "-o", folder / name, folder / f"{name}.c", *options], check=True)
    for number in range(1, MANY):
        shutil.copy(folder / "plug0.so", folder / f"plug{number}.so")
    return folder


def work_of(folder, number):
    """Return how many functions the controller calls for so many libraries, in the thread that serves the program."""
    calls = [0]

    def note(frame, event, argument):
        calls[0] += event == "call"

    threading.setprofile(note)
    try:
        with anyprobe.run([str(folder / "host"), str(folder), str(number)], pending="always") as session:
            session.count("plug*:plug_work")
            assert session.wait(PATIENCE) == 0
            snapshot = session.snapshot()
    finally:
        threading.setprofile(None)
    assert hits(snapshot, "plug_work") == CALLS * number
    assert len([each for each in snapshot.sites if each.hits == CALLS]) == number
    return calls[0]


def test_each_library_takes_as_much_work_as_the_others(folder):
    work_of(folder, 2)  # what is done once
    few, many = work_of(folder, FEW), work_of(folder, MANY)
    assert many < 1.5 * few * MANY / FEW
