"""What a session does while its program runs takes no longer for the functions that it times and their callers."""

import sys
from types import SimpleNamespace

import pytest

import anyprobe
from anyprobe.probes import duties
from anyprobe.probes.providers.function.timing import return_points
from anyprobe.probes.providers.function.timing.return_points import KNOWN_AT_ONCE, is_called_before, points_known
from support.driver import build, started

pytestmark = pytest.mark.live
FEW, MANY = 40, 1200
FEW_CALLERS, MANY_CALLERS = KNOWN_AT_ONCE + 1, 6 * KNOWN_AT_ONCE
ROUNDS = 3
PROGRAM = """
#include <stdio.h>
#include <unistd.h>
__attribute__((noipa)) int last(int x) {{ return x ^ 1; }}
{functions}
int (*const all[])(int) = {{ {names} }};
int main(void) {{
    printf("ready %d\\n", getpid()); fflush(stdout);
    char line[100];
    int x = 0;
    while (fgets(line, sizeof line, stdin))
        for (unsigned n = 0; n < sizeof all / sizeof *all; n++) x = all[n](x);
    return x & 0;
}}
"""
CALLED_BY_MANY = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((noipa)) int last(int x) {{ return x ^ 1; }}
__attribute__((noipa)) int popular(int x) {{ return last(x + 1); }}
__attribute__((noipa)) int jumps(int x) {{ return popular(x + 2); }}
__attribute__((noipa)) int through(int x) {{ return jumps(x) + 3; }}
{functions}
int (*const all[])(int) = {{ {names} }};
int main(void) {{
    printf("ready %d\\n", getpid()); fflush(stdout);
    char line[100];
    while (fgets(line, sizeof line, stdin)) {{
        all[atoi(line)](through(1)); puts("done"); fflush(stdout);
    }}
}}
"""


def many_functions(number):
    """Return a program with functions that all end in a jump."""
    names = [f"ends_{n}" for n in range(number)]
    functions = "\n".join(f"__attribute__((noipa)) int {name}(int x) {{ return last(x + 1); }}" for name in names)
    return build(f"ends_{number}.c", "-O2", text=PROGRAM.format(functions=functions, names=", ".join(names)))


def steps(work):
    """Return how many lines of Python are run, each turn of a loop counted."""
    lines = 0

    def trace(_frame, event, _argument):
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def steps_of_looks(number, monkeypatch, options):
    """Return how many of them there are in ``ROUNDS`` looks, each of which does all that is due at some time."""
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1e9)
    monkeypatch.setattr(duties, "time", clock)
    monkeypatch.setattr(return_points, "time", clock)
    with started(many_functions(number)) as target, anyprobe.attach(target.pid, **options) as session:
        session.time("a.out:*")
        session.count("a.out:*")
        assert sum(each.count == 0 for each in session.snapshot().functions) > number

        def looks():
            for _ in range(ROUNDS):
                clock.now += 100
                session.duties.work()

        looks()
        return steps(looks)


@pytest.mark.parametrize("options", [{}, {"self_time": True}], ids=["timed", "self times"])
def test_looks_do_not_go_through_all_functions(monkeypatch, options):
    few, many = (steps_of_looks(number, monkeypatch, options) for number in (FEW, MANY))
    assert many < few * 1.2 + 50


def called_by_many(number):
    """Return a program with a function that ends in a jump and has so many callers."""
    names = [f"calls_{n}" for n in range(number)]
    functions = "\n".join(
        f"__attribute__((noipa)) int {name}(int x) {{ return popular(x) + {n + 1}; }}" for n, name in enumerate(names)
    )
    return build(f"called_{number}.c", "-O2", text=CALLED_BY_MANY.format(functions=functions, names=", ".join(names)))


def steps_of_learning(number, monkeypatch):
    """Return how many there are in the look at which the session learns of one of so many callers."""
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1e9)
    monkeypatch.setattr(duties, "time", clock)
    monkeypatch.setattr(return_points, "time", clock)
    taken = []
    with started(called_by_many(number)) as target, anyprobe.attach(target.pid) as session:
        session.time("a.out:popular")
        for caller in (3, 5):
            target.send(str(caller))
            target.wait_done()
            clock.now += 100
            taken.append(steps(session.duties.work))
            (timed,) = session.probes[0].timed
            assert len(timed.points) == 1 + len(taken)
    return taken[-1]


def test_a_caller_that_is_learnt_is_looked_at_alone(monkeypatch):
    few, many = (steps_of_learning(number, monkeypatch) for number in (FEW_CALLERS, MANY_CALLERS))
    assert many < few * 1.2 + 50


def test_a_learnt_return_point_is_known_as_among_all():
    """Of those where a function that jumps there is called, and of others, it is none of the function's own calls."""
    with started(called_by_many(FEW)) as target, anyprobe.attach(target.pid) as session:
        session.time("a.out:popular")
        (timed,) = session.probes[0].timed
        known = points_known(timed)
        assert sorted(known.values()) == [False] + [True] * FEW
        assert {point: is_called_before(timed, point) for point in known} == known
        assert not any(is_called_before(timed, point + delta) for point in known for delta in (-1, 1, 0x10000000))
