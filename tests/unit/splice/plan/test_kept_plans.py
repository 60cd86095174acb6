"""Plans that are kept: they are those that would be made anew, byte for byte, or are not used."""

import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from anyprobe.binary.objects import cache
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.plan import kept_plans
from anyprobe.splice.plan.plan_records import Reasons
from anyprobe.splice.plan.splices import Strategy, Want, WantKind
from support.kept_plans import BIAS, OTHER_BIAS, Planned

COUNTED = frozenset({WantKind.ENTRY})
TIMED = frozenset({WantKind.ENTRY, WantKind.EXIT})
COVERED = frozenset({WantKind.OFFSET})
KINDS = pytest.mark.parametrize("kinds", [COUNTED, TIMED, COVERED], ids=["count", "time", "cover"])
LIBC = next((str(each) for each in Path("/lib/x86_64-linux-gnu").glob("libc.so.6")), "/lib64/libc.so.6")
PROGRAMS = {"bash": 23, "perl": 41, "sqlite3": 11, "python3.11": 97, LIBC: 37}
"""With of how many functions one is planned."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def path_of(name):
    found = name if name.startswith("/") else f"/usr/bin/{name}"
    if not Path(found).exists():
        pytest.skip(f"there is no {name} here")
    return Path(found).resolve()


@KINDS
@pytest.mark.parametrize("name", PROGRAMS)
def test_kept_plans_are_those_that_are_made_anew(name, kinds):
    path, step = path_of(name), PROGRAMS[name]
    fresh = Planned(path).plan_all(kinds, step=step, kept=False)
    first = Planned(path).plan_all(kinds, step=step)
    assert first.made == fresh.made
    first.plans.save()
    again = Planned(path).plan_all(kinds, step=step)
    assert again.made == fresh.made
    plain = [start for start in again.fresh if is_plain(again.made[start])]
    assert len(again.fresh) - len(plain) <= len(fresh.fresh) // 50  # those of entries are kept elsewhere


def test_one_function_more_is_kept_besides_hundreds(program, monkeypatch):
    """Each session would plan it anew otherwise, since it never has hundreds of others to keep."""
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(program.parent / "cache"))
    session = Planned(program).plan_all(TIMED, step=2)
    session.plans.save()
    session = Planned(program)
    other = next(each for each in session.functions() if session.plan(each, TIMED) or session.fresh)
    session.plans.save()
    session = Planned(program)
    session.plan(other, TIMED)
    assert not session.fresh


def is_plain(made):
    splices, refused, _ = made
    return len(splices) == 1 and splices[0][0] is Strategy.JUMP and splices[0][3] == [0] and not refused


@KINDS
@pytest.mark.parametrize("name", ["bash", "perl"])
@pytest.mark.sliced(2)
def test_what_is_claimed_otherwise_is_planned_as_it_would_be_without_them(name, kinds):
    path = path_of(name)
    Planned(path).plan_all(kinds, step=4).plans.save()
    fresh = Planned(path).plan_all(kinds, step=6, kept=False)
    assert Planned(path).plan_all(kinds, step=6).made == fresh.made


@pytest.mark.parametrize("name", ["bash", "perl"])
def test_elsewhere_springboards_have_other_places(name):
    path = path_of(name)
    Planned(path, bias=BIAS).plan_all(TIMED, step=11).plans.save()
    fresh = Planned(path, bias=OTHER_BIAS).plan_all(TIMED, step=11, kept=False)
    again = Planned(path, bias=OTHER_BIAS).plan_all(TIMED, step=11)
    assert again.made == fresh.made
    assert len(again.fresh) < len(fresh.fresh) // 4


def test_where_faults_are_handled_plans_are_others(tmp_path):
    path = path_of("bash")
    Planned(path).plan_all(TIMED, step=23).plans.save()
    fresh = Planned(path, faults=True).plan_all(TIMED, step=23, kept=False)
    again = Planned(path, faults=True).plan_all(TIMED, step=23)
    assert again.made == fresh.made
    assert again.fresh == fresh.fresh


@pytest.fixture
def program(tmp_path):
    return Path(shutil.copy("/usr/bin/env", tmp_path / "program"))


def test_a_plan_is_for_just_what_is_wanted(program):
    before = Planned(program).plan_all(TIMED)
    before.plans.save()
    start = next(each for each, made in before.made.items() if len(made[2]) == 1 and len(made[0]) > 1)
    for kinds, vital in ((frozenset({WantKind.EXIT}), False), (COUNTED, False), (TIMED, True)):
        after = Planned(program)
        function = after.code.function_at(start)
        wants = after.wants(function, kinds)
        after.wants = lambda *_, wants=wants: wants
        after.plan(function, kinds, vital=frozenset(wants) if vital else frozenset())
        assert after.fresh == [start]


def test_other_instructions_are_planned_anew(program, monkeypatch):
    before = Planned(program)
    function = next(each for each in before.functions() if len(each.insns) > 20)

    def session(*numbers):
        found = Planned(program)
        wants = [Want(function.insns[number].address, WantKind.OFFSET) for number in numbers]
        found.wants = lambda *_: wants
        found.plan(function, COVERED)
        found.plans.save()
        return found

    assert session(9, 12).fresh == [function.start]
    assert session(9, 13).fresh == [function.start]
    again = session(9, 12)
    assert not again.fresh
    assert not again.plans.others._rows  # which are read where entries are counted
    monkeypatch.setattr(kept_plans, "_MOST_NUMBERS", 0)
    assert session(9, 14).fresh == [function.start]
    assert not session(9, 14).fresh
    assert session(9, 12).fresh == [function.start]  # there was room for the latest one only


def test_a_file_with_other_code_and_the_same_build_id_is_looked_at_anew(program):
    Planned(program).plan_all(TIMED).plans.save()
    assert Planned(program).plans.others._rows
    content = bytearray(program.read_bytes())
    content[content.rindex(b"\xc3")] = 0x90
    program.write_bytes(content)
    assert not Planned(program).plans.others._rows


DAMAGES = [(name, how) for name in kept_plans._ARRAYS for how in ("absent", "wide", "strange", "shorter")]


@pytest.mark.parametrize(("name", "how"), [*DAMAGES, ("firsts", "astray")])
def test_what_does_not_fit_is_nothing(program, monkeypatch, name, how):
    Planned(program).plan_all(TIMED).plans.save()
    damage = {
        "absent": lambda _: None,
        "wide": lambda array: np.stack([array, array]),
        "strange": lambda array: array.astype(np.float64),
        "shorter": lambda array: array[:-1],
        "astray": lambda array: array[::-1].copy(),
    }[how]
    damaged(monkeypatch, name, damage)
    assert not Planned(program).plans.others._rows


@pytest.mark.parametrize("kind", ["another", "gone"])
def test_rows_that_say_nothing_are_planned_anew(program, monkeypatch, kind):
    fresh = Planned(program).plan_all(TIMED, kept=False)
    Planned(program).plan_all(TIMED).plans.save()
    if kind == "another":
        damaged(monkeypatch, "firsts", lambda array: np.array([0, *(array[1:-1] - 1), array[-1]]))
    else:
        damaged(monkeypatch, "starts", lambda array: array + 1)
    assert Planned(program).plan_all(TIMED).made == fresh.made


def damaged(monkeypatch, name, damage):
    """Have one array of what is kept be another one, or none."""
    load = cache.load

    def loaded(build_id, kind, *, version=0):
        found = load(build_id, kind, version=version)
        if kind != kept_plans.ENDS or found is None:
            return found
        values, arrays = found
        array = damage(arrays.pop(name))
        return values, arrays if array is None else {**arrays, name: array}

    monkeypatch.setattr(cache, "load", loaded)


def test_nothing_is_kept_of_what_only_one_program_enters(program):
    """Its plans may refuse what later ones would not."""
    known = Planned(program).plan_all(TIMED).plans.others._rows
    session = Planned(program)
    functions = list(session.functions())
    session.code.add_entry(functions[-1].entry + 1)
    session.plan_all(TIMED)
    assert known
    assert not session.plans.others._rows


def test_nothing_is_kept_that_was_begun_before_that(program):
    known = Planned(program).plan_all(TIMED).plans.others._rows
    session = Planned(program)
    function = session.code.function_at(next(iter(known)))

    class Fresh(list):
        def append(self, start):
            super().append(start)
            session.code.add_entry(function.entry + 1)

    session.fresh = Fresh()
    session.plan(function, TIMED)
    assert session.fresh
    assert not session.plans.others._rows


@pytest.fixture
def hurried():
    """Threads take turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*tasks):
    """Run each in a thread of its own, all at once; return what they return."""
    barrier = threading.Barrier(len(tasks))

    def run(task):
        barrier.wait(180)
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [each.result() for each in [pool.submit(run, task) for task in tasks]]


class Lingering(str):
    """A detail at which another thread takes its turn whenever it is looked up."""

    __slots__ = ()

    def __hash__(self):
        time.sleep(0.0005)
        return super().__hash__()

    __eq__ = str.__eq__


def test_each_reason_has_a_number_of_its_own_in_all_threads():
    reasons = Reasons()

    def numbers(thread):
        said = [Refusal(Reason.OVERLAP, 0, Lingering((thread + 1) * number % 23)) for number in range(30)]
        return [(each.detail, reasons.number_of(each)) for each in said]

    for found in together(*(lambda thread=thread: numbers(thread) for thread in range(4))):
        for detail, number in found:
            assert reasons.refusal(number, 0).detail == detail
    assert len(set(reasons.known)) == len(reasons.known)


def test_plans_are_saved_while_others_are_noted(program, hurried):
    """Sessions on several processes share what is known of a file, and each saves it when it has armed."""
    source = Planned(program).plan_all(TIMED).plans
    (*rows,) = source.others._rows.items()
    plans = Planned(program).plans
    others, timed, done = plans.others, plans.timed, threading.Event()

    def note():
        try:
            for number in range(30_000):
                start, (row, *_) = rows[number % len(rows)]
                others._rows[start + number] = [row]
                plans._firsts[number], plans._plans[number], plans._dead[number] = number, (number, 5, 5), 0
                timed._exits[number] = (), (), None
                others._fresh = plans._fresh = timed._fresh = 1 << 20
        finally:
            done.set()

    def save():
        while not done.is_set():
            plans.save()

    together(note, save, save)
    plans.save()
    assert len(Planned(program).plans._firsts) == 30_000
