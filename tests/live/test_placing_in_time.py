"""Placing that is given a time: what is hot comes first, what is left out is said, and rates are of what is counted."""

import json
import subprocess
import sys

import pytest

import anyprobe
from anyprobe.core.checkpoints import interruptible
from anyprobe.core.errors import Interrupted
from anyprobe.core.memory import MemoryFault
from anyprobe.probes.parts import modules
from support.driver import build, started, wait_until

FUNCTIONS, HOT, SELDOM = 6000, 5990, 3000
"""The program calls the hot one a thousand times for each call of the other one, and no others."""
PROGRAM = "\n".join(
    [
        *(
            f'__attribute__((noinline)) int f{n}(int x) {{ __asm__ volatile(""); return x * {n} + {n % 7}; }}'
            for n in range(FUNCTIONS)
        ),
        "#include <stdio.h>",
        "#include <unistd.h>",
        'int main(void) { volatile int x = 0; printf("ready %d\\n", getpid()); fflush(stdout);',
        f"    for (;;) {{ for (int n = 0; n < 1000; n++) x = f{HOT}(x); x = f{SELDOM}(x); }}",
        "}",
        "int (*all[])(int) = {",
        *(f"f{n}," for n in range(FUNCTIONS)),
        "};",
    ]
)


@pytest.fixture(scope="module")
def program():
    return build("many_functions.c", "-O1", text=PROGRAM)


def command(*words):
    done = subprocess.run(
        [sys.executable, "-m", "anyprobe", *map(str, words)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done


def test_what_is_hot_is_placed_first_and_the_rest_is_said_to_be_left_out(program):
    with started(program) as target:
        done = command("count", "a.out:f[0-9]*", "-p", target.pid, "--for", 0.3, "--max-setup", 0.3, "--json")
    found = json.loads(done.stdout)
    left = [each for each in found["refused"] if each["reason"] == "left-out"]
    assert len(found["sites"]) + len(found["refused"]) == FUNCTIONS
    assert left
    hits = {each["function"]: each["hits"] for each in found["sites"]}
    assert hits[f"f{HOT}"] > 0
    assert sum(hits.values()) == hits[f"f{HOT}"] + hits.get(f"f{SELDOM}", 0)
    assert any("functions are left out" in each for each in found["warnings"])


def test_with_time_enough_nothing_is_left_out(program):
    with started(program) as target:
        done = command("count", "a.out:f[0-9]*", "-p", target.pid, "--for", 0.2, "--max-setup", 100, "--json")
    found = json.loads(done.stdout)
    assert len(found["sites"]) + len(found["refused"]) == FUNCTIONS
    assert not found.get("warnings")
    assert "left-out" not in {each["reason"] for each in found["refused"]}


@pytest.mark.parametrize("how", ["timed", "covered"])
def test_times_and_blocks_too(program, how):
    with started(program) as target, anyprobe.attach(target.pid, max_setup=0.3) as session:
        (session.time if how == "timed" else session.cover)("a.out:f[0-9]*")
        wait_until(lambda: _ran(session.snapshot(), how), f"f{HOT} to be {how}")
        found = session.snapshot()
    assert any(each.reason == "left-out" for each in found.refused)


def _ran(found, how):
    if how == "timed":
        return [each for each in found.functions if each.function == f"f{HOT}" and each.count]
    functions = [each for module in found.coverage.modules for each in module.functions]
    return [each for each in functions if each.name == f"f{HOT}" and any(each.blocks.values())]


def test_an_end_that_is_asked_for_meanwhile_keeps_what_is_placed(program):
    with started(program) as target, anyprobe.attach(target.pid, max_setup=100) as session:

        def check():
            if any(place.armed for probe in session.host.probes for place in probe.places):
                raise Interrupted("it is enough")

        with interruptible(check):
            session.count("a.out:f[0-9]*")
        found = session.snapshot()
        left = [each for each in found.refused if each.reason == "left-out"]
        assert 0 < len(found.sites) < FUNCTIONS
        assert len(found.sites) + len(found.refused) == FUNCTIONS
        assert "the end was asked for" in left[0].detail


def test_an_end_before_anything_is_placed_leaves_nothing(program):
    def check():
        raise Interrupted("at once")

    with started(program) as target, anyprobe.attach(target.pid, max_setup=100) as session:
        with pytest.raises(Interrupted), interruptible(check):
            session.count("a.out:f[0-9]*")
        assert not session.probes
        assert not session.snapshot().sites


def test_what_is_hot_counts_at_once_and_the_others_are_placed_meanwhile(program):
    with started(program) as target, anyprobe.attach(target.pid, at_once=True) as session:
        (probe,) = session.count("a.out:f[0-9]*")
        first = {each.function: each for each in session.snapshot().sites}
        assert first[f"f{HOT}"].armed
        assert len(first) < FUNCTIONS / 10
        then = session.snapshot()
        assert then.as_json()["to_place"] == then.to_place == FUNCTIONS - len(then.sites) - len(then.refused)
        session.pump(0.01)
        assert any(place.since for place in probe.places)
        wait_until(lambda: session.pump(0.05) and session.warnings, "all to be placed")
        assert "all functions are placed since" in session.warnings[0]
        found = session.snapshot()
        sites = {each.function: each for each in found.sites}
        assert len(sites) + len(found.refused) == FUNCTIONS
        assert "left-out" not in {each.reason for each in found.refused}
        assert "to_place" not in found.as_json()
        assert sites[f"f{HOT}"].since == 0 < sites[f"f{SELDOM}"].since < found.duration_s
        rates = [sites[f"f{n}"].hits / (found.duration_s - sites[f"f{n}"].since) for n in (HOT, SELDOM)]
        assert 0.6 < rates[0] / (1000 * rates[1]) < 1.6  # the others change how fast the program is
        target.check_alive()


@pytest.mark.parametrize("step", ["find_out_about", "arm"])
def test_a_part_that_cannot_be_placed_meanwhile_is_refused_and_the_others_are_placed(program, monkeypatch, step):
    failed = []

    def fails_once(*_):
        if not failed:
            failed.append(step)
            raise MemoryFault(0x1000, 8)

    with started(program) as target, anyprobe.attach(target.pid, at_once=True) as session:
        session.count("a.out:f[0-9]*")
        to_place = session.snapshot().to_place
        where, name = (modules, "survey") if step == "find_out_about" else (session.host.engine, "change")
        as_ever = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *all, **named: (fails_once(), as_ever(*all, **named))[1])
        wait_until(
            lambda: session.pump(0.05) and "all functions are placed" in str(session.warnings), "all to be placed"
        )
        found = session.snapshot()
        left = [each for each in found.refused if each.reason == "left-out"]
        assert failed
        assert 0 < len(left) < to_place
        assert all(each.detail.startswith("it could not be placed: ") for each in left)
        assert len(found.sites) + len(found.refused) == FUNCTIONS
        target.check_alive()


@pytest.mark.parametrize("how", ["count", "time", "hist"])
def test_what_was_not_placed_before_the_end_is_left_out(program, how):
    more = ("--of", "arg0") if how == "hist" else ()
    with started(program) as target:
        done = command(how, "a.out:f[0-9]*", *more, "-p", target.pid, "--for", 0.1, "--at-once", "--json")
        target.check_alive()
    found = json.loads(done.stdout)
    left = [each for each in found["refused"] if each["reason"] == "left-out"]
    assert left
    assert {each["detail"] for each in left} == {"the end came before it was placed"}
    assert any("functions are left out: the end came" in each for each in found["warnings"])


def test_at_once_is_refused_where_it_means_nothing(program):
    for words, why in (
        (["count", "a.out:f1", "--at-once", "--", str(program)], "--at-once is for programs that run"),
        (["cover", "a.out", "--at-once", "-p", "1"], "--at-once is about calls"),
    ):
        done = subprocess.run([sys.executable, "-m", "anyprobe", *words], capture_output=True, text=True, timeout=60)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr


LOADS = r"""#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    printf("ready %d\n", getpid());
    fflush(stdout);
    getchar();
    int (*function)(int) = (int (*)(int))dlsym(dlopen(argv[1], RTLD_NOW), "late");
    for (int n = 0; n < 1000; n++) function(n);
    puts("done");
    getchar();
}
"""


def test_what_is_loaded_later_says_since_when_it_counts():
    library = build("late.c", "-shared", "-fPIC", text="int late(int x) { return 3 * x + 1; }")
    with started(build("loads_late.c", text=LOADS), str(library)) as target:
        session = anyprobe.attach(target.pid, pending="always")
        with session:
            session.count("late", "libc:puts")
            session.pump_in_background()
            wait_until(lambda: session.snapshot().duration_s > 0.3, "some time")
            target.process.stdin.write("\n")
            target.process.stdin.flush()
            wait_until(lambda: {each.hits for each in session.snapshot().sites} == {1000, 1}, "all calls")
            found = {each.function: each for each in session.snapshot().sites}
            duration = session.snapshot().duration_s
    assert found["puts"].since == 0
    assert "since" not in found["puts"].as_json()
    assert 0.3 <= found["late"].since <= duration
    assert found["late"].as_json()["since"] == found["late"].since
