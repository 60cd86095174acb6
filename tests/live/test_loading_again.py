"""Libraries that come and go: what is timed there and seen by handlers goes on in each life, each call once."""

import os

import pytest

import anyprobe
from anyprobe import Sum, i32
from support.driver import build, wait_until
from support.image import Image
from support.plugins import told
from support.results import timing

pytestmark = pytest.mark.live
JUMPING = """
#include <setjmp.h>
#define NOINLINE __attribute__((noinline, noclone))
jmp_buf out;
static volatile int spin;
int plain(int x) { spin++; return x + 1; }
static NOINLINE int goal(int x) { spin++; return x + 1; }
int leaves(int x) { spin++; return goal(x); }
int within(int x) { int r = leaves(x); spin++; return r; }
static int (*volatile pointer)(int) = leaves;
int indirect(int x) { int r = pointer(x); spin++; return r; }
static NOINLINE int leap(int x) { if (x % 2) longjmp(out, 1); return x; }
int leaps(int x) { spin++; return leap(x); }
"""
CALLING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
typedef int function(int);
static volatile int spin;
static int __attribute__((noinline, noclone)) via(function *volatile f, int x) { int r = f(x); spin++; return r; }
static int own(int x) { return x; }
int main(int argc, char **argv) {
    void *volatile library = 0;
    int c;
    (void)argc;
    puts("ready"); fflush(stdout);
    while ((c = getchar()) != EOF) {
        if (c == 'l') library = dlopen(argv[1], RTLD_NOW);
        if (c == 'u') { dlclose(library); library = 0; via(own, 1); }
        if (c == 'a' || c == 'b') {
            for (volatile int n = 0; n < (c == 'a' ? 1 : 100); n++) {
                via(dlsym(library, "leaves"), n);
                ((function *)dlsym(library, "within"))(n);
                ((function *)dlsym(library, "indirect"))(n);
                if (setjmp(*(jmp_buf *)dlsym(library, "out")) == 0) via(dlsym(library, "leaps"), n);
                via(dlsym(library, "plain"), n);
            }
        }
        if (c != '\\n') { puts("done"); fflush(stdout); }
    }
    return 0;
}
"""
LIVES, EACH, CALLERS = 4, 100, 3
"""Lives of the library; calls by each caller in one; callers of ``leaves``: here, and two in the library."""


@pytest.fixture
def jumping():
    library = build("jumping.c", "-shared", "-fPIC", "-O2", "-Wl,-Bsymbolic", text=JUMPING)
    with told(build("calling.c", "-O2", "-ldl", text=CALLING), library) as do:
        yield do


def lives(session, program, callers):
    """Have a library live some times, with a first call by each caller in the first life; yield the number of each."""
    for life in range(1, LIVES + 1):
        program("l")
        if life == 1:
            program("a")

        def known():
            session.pump(0.01)
            return callers() == CALLERS + 1  # with that of the function that longjmp leaves

        wait_until(known, "callers to be known")
        program("b")
        yield life
        program("u")
        session.pump(0.01)


def own_text(pid):
    """Return the text of a program itself, in which calls end whose library is gone."""
    return {where: text for where, text in Image.of(pid).text.items() if where[1] == os.readlink(f"/proc/{pid}/exe")}


@pytest.mark.parametrize("self_time", [False, True], ids=["", "self times"])
def test_calls_that_leave_by_jumps_are_timed_in_each_life(jumping, self_time):
    """To callers that are known, learnt in each life and kept; what longjmp leaves behind has no time in any."""
    before = own_text(jumping.pid)
    with anyprobe.attach(jumping.pid, self_time=self_time) as session:
        session.time("jumping:leaves", "jumping:leaps", follow=True)
        for life in lives(session, jumping, lambda: sum(each.callers for each in session.snapshot().functions)):
            leaves, leaps = (timing(session.snapshot(), name) for name in ("leaves", "leaps"))
            assert (leaves.learning, leaves.count) == (2, 1 + life * CALLERS * EACH)
            assert leaves.tail_exits == leaves.unmatched == leaves.nmissed == leaves.in_flight == 0
            assert sum(count for _, _, count in leaves.buckets) == leaves.count
            assert (leaps.learning, leaps.count) == (1, life * EACH // 2)
            assert leaps.nmissed + leaps.in_flight + leaps.left == life * EACH // 2
        session.remove(*session.probes)
        assert own_text(jumping.pid) == before


def test_handlers_see_returns_of_calls_that_leave_by_jumps_in_each_life(jumping):
    """Where callers go on; removed, nothing of it is left in callers that have stayed."""
    before = own_text(jumping.pid)
    with anyprobe.attach(jumping.pid) as session:
        returned = {name: Sum(name) for name in ("leaves", "leaps")}
        leaves, leaps = returned["leaves"], returned["leaps"]
        session.ret("jumping:leaves", retval=i32, follow=True)(lambda ctx: leaves.add(ctx.retval))
        session.ret("jumping:leaps", retval=i32, follow=True)(lambda ctx: leaps.add(ctx.retval))

        def callers():
            handled = [each for probe in session.probes for each in probe.handled]
            return sum(place.armed for each in handled for place in each.points.values())

        for life in lives(session, jumping, callers):
            found = {each.name: each.total for each in session.snapshot().aggregations}
            assert (found["leaves"].count, found["leaps"].count) == (1 + life * CALLERS * EACH, life * EACH // 2)
            assert found["leaves"].sum == 1 + life * CALLERS * EACH * (EACH + 1) // 2
            assert found["leaps"].sum == life * sum(range(0, EACH, 2))
        session.remove(*session.probes)
        assert own_text(jumping.pid) == before


@pytest.mark.parametrize("self_time", [False, True], ids=["", "self times"])
def test_a_function_that_two_probes_time_has_each_call_once_in_each_life(jumping, self_time):
    """Asked for while it is loaded and by another spec: with self times both show one record, else one each."""
    with anyprobe.attach(jumping.pid, self_time=self_time) as session:
        jumping("l")
        session.time("jumping:plain", follow=True)
        session.time("jumping:pla*", follow=True)
        for life in range(1, LIVES + 1):
            jumping("l" if life > 1 else "")
            jumping("b")
            assert [each.count for each in session.snapshot().functions] == [life * EACH] * 2
            jumping("u")
            session.pump(0.01)
