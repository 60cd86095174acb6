"""What a symbol's name means where several objects have it."""

import subprocess

import pytest

import anyprobe
from anyprobe import u64
from anyprobe.kprobes import (
    Djprobe,
    Jprobe,
    Kprobe,
    Kretprobe,
    debugfs,
    register_djprobe,
    register_jprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
)
from support.driver import TARGETS, started

pytestmark = pytest.mark.live

PROGRAM = r"""
#include "protocol.h"
#include <dlfcn.h>
static long (*first)(long), (*second)(long);
static void one_round(void) {
    for (long n = 0; n < 10; n++) check(first(n) == n * 5 + 1, "the first");
    for (long n = 0; n < 3; n++) check(second(n) == n * 5 + 2, "the second");
}
static void *loaded(const char *path) { return dlsym(dlopen(path, RTLD_NOW), "inside_library"); }
static void setup(int argc, char **argv) {
    check(argc == 3, "two libraries");
    first = (long (*)(long))loaded(argv[1]);
    second = (long (*)(long))loaded(argv[2]);
}
"""


@pytest.fixture
def libraries(tmp_path):
    """Two libraries of one name with a function of one name; the later one has the lower address."""
    paths = []
    for number in (1, 2):
        source = tmp_path / f"library{number}.c"
        source.write_text(f"long inside_library(long n) {{ return n * 5 + {number}; }}\n")
        (tmp_path / str(number)).mkdir()
        paths.append(tmp_path / str(number) / "library.so")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", paths[-1], source], check=True)
    return paths


@pytest.fixture
def target(tmp_path, libraries):
    (tmp_path / "program.c").write_text(PROGRAM)
    program = tmp_path / "program"
    subprocess.run(["gcc", "-O2", "-I", TARGETS, tmp_path / "program.c", "-o", program, "-ldl"], check=True)
    with started(program, *map(str, libraries)) as running:
        yield running


def test_the_object_that_was_loaded_first_and_no_other_of_its_name(target, session, libraries):
    """A name alone means the first one loaded, ``module`` another; probes are in that one only, of whatever kind."""

    def entry(n: u64):
        pass

    first, second = Kprobe("inside_library"), Kprobe("inside_library", module=str(libraries[1]))
    assert register_kprobes([first, second]) == 0, [first.error, second.error]
    assert first.addr > second.addr
    named = Kprobe("inside_library", module="library.so")
    by_address, djp = Kprobe(addr=second.addr), Djprobe(second.addr)
    assert register_kprobe(named) == register_kprobe(by_address) == register_djprobe(djp) == 0
    rp = Kretprobe(Kprobe(addr=second.addr), lambda ri, regs: 0)
    jp = Jprobe(Kprobe("inside_library", module=str(libraries[1])), entry)
    assert register_kretprobe(rp) == register_jprobe(jp) == 0, (rp.kp.error, jp.kp.error)
    target.go(2)
    assert [kp.hits for kp in (first, named)] == [20, 20]
    assert [kp.hits for kp in (second, by_address, djp.kp, rp.kp, jp.kp)] == [6] * 5
    assert [line.address == second.addr for line in debugfs.listing()] == [False, True, False, True, True, True, True]
    target.finish()


def test_a_preloaded_library_comes_before_the_c_library(tmp_path):
    """Its function is the one that is called."""
    source, library = tmp_path / "preloaded.c", tmp_path / "preloaded.so"
    source.write_text("#include <stdlib.h>\nlong labs(long n) { return n < 0 ? -n : n; }\n")
    subprocess.run(["gcc", "-O2", "-fno-builtin", "-shared", "-fPIC", "-o", library, source], check=True)
    text = (
        '#include "protocol.h"\nstatic volatile long n = -3;\n'
        'static void one_round(void) { check(labs(n) == 3, "labs"); }\n'
        "static void setup(int argc, char **argv) { (void)argc; (void)argv; }\n"
    )
    (tmp_path / "calls.c").write_text(text)
    program = tmp_path / "calls"
    subprocess.run(["gcc", "-O2", "-fno-builtin", "-I", TARGETS, tmp_path / "calls.c", "-o", program], check=True)
    with started(program, env={"LD_PRELOAD": str(library)}) as target, anyprobe.attach(target.pid):
        kp = Kprobe("labs")
        assert register_kprobe(kp) == 0, kp.error
        assert debugfs.listing()[0].module == "preloaded.so"
        target.go(4)
        assert kp.hits == 4
        target.finish()
