"""Functions that libc chooses an implementation of: one site each, and every call counted once."""

import pytest

import anyprobe
from support.driver import PATIENCE, build

LOADER = "/lib64/ld-linux-x86-64.so.2"
ROUNDS = 10
OF_STDIO = 200
"""More than the calls with which the program says its numbers."""


def test_a_call_through_an_ifunc_is_counted_once(run_target):
    target = run_target("string_lengths.c")
    with anyprobe.attach(target.pid) as session:
        session.count("libc:strlen")
        counts = target.go(ROUNDS)
        (site,) = session.snapshot().sites
        assert counts.calls["strlen"] == ROUNDS * 1000
        assert counts.calls["strlen"] <= site.hits < counts.calls["strlen"] + OF_STDIO
    target.finish()


def test_a_callee_is_counted_for_each_of_its_callers(run_target):
    """Where libc's getenv calls strlen, strlen's number holds those calls too."""
    target = run_target("library_calls.c")
    with anyprobe.attach(target.pid) as session:
        session.count("libc:strlen", "libc:getenv")
        counts = target.go(ROUNDS)
        strlen, getenv = (sum(s.hits for s in session.snapshot().sites if n in s.spec) for n in ("strlen", "getenv"))
        assert counts.calls["getenv"] <= getenv < counts.calls["getenv"] + OF_STDIO
        within = [calls for calls in (0, getenv) if 0 <= strlen - counts.calls["strlen"] - calls < OF_STDIO]
        assert within, (strlen, getenv, counts.calls)
    target.finish()


def test_no_spec_lists_a_site_twice(run_target):
    target = run_target("library_calls.c")
    with anyprobe.attach(target.pid) as session:
        for spec in ("libc:*", "libc:str*", "libc:strlen", "strlen", "*:mem*", "libc:*%return", "libc:*time*", "*:*"):
            sites, _ = session.resolve(spec)
            assert len({site.address for site in sites}) == len(sites) > 0, spec
    target.finish()


PROGRAM = """
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
static volatile unsigned long sum;
static char text[] = "some text";
__attribute__((noinline)) static void lengths(int times) { while (times--) sum += strlen(text + times %% 4); }
__attribute__((constructor)) static void before(void) { lengths(%d); }
int main(void) { lengths(%d); return sum == 0; }
"""
BEFORE, IN_MAIN = 300, 7_000


@pytest.mark.parametrize("flags", [(), ("-Wl,-z,lazy",), ("-Wl,-z,now",)], ids=["default", "lazy", "now"])
def test_a_started_program_is_counted_from_its_constructors_on(flags):
    """The loader chooses functions after the libraries' probes are placed, and before the first constructor."""
    program = build("lengths.c", "-O1", "-fno-builtin", *flags, text=PROGRAM % (BEFORE, IN_MAIN))
    with anyprobe.run([program]) as session:
        (counted,), (timed,) = session.count("libc:strlen"), session.time("libc:strlen")
        assert session.wait(PATIENCE) == 0
        found = session.snapshot()
        assert [refusal for _, refusal in counted.refused + timed.refused] == []
        (site,), (timing,) = found.sites, found.functions
        assert BEFORE + IN_MAIN <= site.hits == timing.count < BEFORE + IN_MAIN + OF_STDIO
        assert not any("IFUNC" in warning for warning in session.warnings)


def test_a_program_that_the_loader_starts_without_its_cache():
    program = build("lengths.c", "-O1", "-fno-builtin", text=PROGRAM % (BEFORE, IN_MAIN))
    with anyprobe.run([LOADER, "--inhibit-cache", program]) as session:
        session.count("libc:strlen")
        assert session.wait(PATIENCE) == 0
        assert BEFORE + IN_MAIN <= session.snapshot().hits < BEFORE + IN_MAIN + OF_STDIO


def test_a_function_is_not_refused_once_it_is_chosen_where_a_glob_names_what_is_chosen_too():
    """Its implementation has a name of its own, which the glob has placed before anything was chosen."""
    program = build("lengths.c", "-O1", "-fno-builtin", text=PROGRAM % (BEFORE, IN_MAIN))
    with anyprobe.run([program]) as session:
        (probe,) = session.count("libc:*strlen*")
        assert session.wait(PATIENCE) == 0
        assert [spec for spec, _ in probe.refused] == []
        assert session.snapshot().hits >= BEFORE + IN_MAIN
