"""What is remembered of timed functions: where they end, how they are spliced, and when it does not hold."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.binary.objects import cache
from anyprobe.splice.plan import timed_plans
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.entry_plans import EntryPlans
from anyprobe.splice.plan.splices import Clobbers, Want, WantKind
from support.planning import planner_for


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copy("/usr/bin/env", tmp_path / "program"))


class Opened:
    def __init__(self, path):
        image = Image.open(str(path))
        self.code = CodeMap(image.text())
        self.plans = EntryPlans(self.code.text, image.build_id)
        functions = map(self.code.function_at, self.code.text.function_starts.tolist())
        self.functions = [each for each in functions if isinstance(each, FunctionCode)]

    def exits(self):
        return {each.start: self.plans.timed.exits_of(self.code, each) for each in self.functions}


def wants_of(function, exits):
    ends = [Want(each.address, WantKind.EXIT, each.conditional, inside=each.inside) for each in exits.found]
    return [Want(function.entry, WantKind.ENTRY), *ends]


def shape(splice):
    wants = [(each.address, each.kind, each.tag, each.internal) for each in splice.wants]
    return splice.strategy, splice.head, [each.raw for each in splice.insns], splice.written, splice.write_at, wants


def planned(opened):
    """Plan all functions whose ends are known, and keep that; return the plans that are kept, by function."""
    planner, made = planner_for(opened.code, Claims(), lambda _: False), {}
    for function in opened.functions:
        exits = opened.plans.timed.exits_of(opened.code, function)
        if exits.complete is None and exits.found:
            wants = wants_of(function, exits)
            plan = planner.plan(function, wants)
            opened.plans.timed.note(function, wants, plan)
            if opened.plans.timed.find(opened.code, function.start, wants) is not None:
                made[function.start] = plan
    opened.plans.save()
    return made


def test_ends_are_found_again_without_another_look(program, monkeypatch):
    before = Opened(program)
    ends = before.exits()
    before.plans.save()
    assert any(each.complete is not None for each in ends.values())
    assert any(len(each.found) > 1 for each in ends.values())
    after = Opened(program)
    monkeypatch.setattr(FunctionCode, "exits", None)  # that would look
    for start, found in after.exits().items():
        known = ends[start]
        assert (found.found, found.complete, found.unmatched) == (known.found, known.complete, None)
        assert [each.start for each in found.parts] == [each.start for each in known.parts]


def test_plans_are_found_again(program):
    made = planned(Opened(program))
    assert len(made) > 20
    after = Opened(program)
    for function in after.functions:
        if function.start not in made:
            continue
        wants = wants_of(function, after.plans.timed.exits_of(after.code, function))
        plan = after.plans.timed.find(after.code, function.start, wants)
        before = made[function.start]
        assert [shape(each) for each in plan.splices] == [shape(each) for each in before.splices]
        assert [each.start for each in plan.scope] == [each.start for each in before.scope]
        served = [want for each in plan.splices for want in each.wants if want.kind is not WantKind.LOOP]
        assert sorted(map(id, served)) == sorted(map(id, wants))


def test_a_plan_is_for_just_what_is_wanted(program):
    opened = Opened(program)
    start = next(iter(planned(opened)))
    function = opened.code.function_at(start)
    wants = wants_of(function, function.exits)
    find = opened.plans.timed.find
    assert find(opened.code, start, wants) is not None
    assert find(opened.code, start, wants[1:]) is None
    assert find(opened.code, start, wants[:1]) is None
    assert find(opened.code, start, [*wants, Want(function.insn(1).address, WantKind.OFFSET)]) is None
    assert find(opened.code, start, [Want(each.address, WantKind.OFFSET) for each in wants]) is None


def test_what_may_be_overwritten_is_told_for_each_kind_and_both_ways_of_faults(program):
    timed = Opened(program).plans.timed
    entry, end = Want(0x1000, WantKind.ENTRY), Want(0x1000, WantKind.EXIT)
    timed.note_clobbers(entry, Clobbers(("r11", "rax"), flags=True), skipping=False)
    timed.note_clobbers(end, Clobbers(), skipping=True)
    assert timed.clobbers(entry, skipping=False) == Clobbers(("r11", "rax"), flags=True)
    assert timed.clobbers(end, skipping=True) == Clobbers()
    assert timed.clobbers(entry, skipping=True) is None
    assert timed.clobbers(end, skipping=False) is None


def test_a_file_with_other_code_and_the_same_build_id_is_looked_at_anew(program):
    made = planned(Opened(program))
    content = bytearray(program.read_bytes())
    content[content.rindex(b"\xc3")] = 0x90
    program.write_bytes(content)
    after = Opened(program)
    assert made
    assert not after.plans.timed._plans
    assert not after.plans.timed._exits


NEEDED = ("exits", "parts", "why", "members", "splices", "wanted")
"""Arrays of which others say how long they are."""
DAMAGES = [(each, how) for each in sorted(timed_plans._SHAPES) for how in ("absent", "wide", "strange")]


@pytest.mark.parametrize(("name", "how"), [*DAMAGES, *((each, "shorter") for each in NEEDED)])
def test_what_does_not_fit_is_nothing(program, monkeypatch, name, how):
    planned(Opened(program))
    load = cache.load

    def damaged(build_id, kind, *, version=0):
        found = load(build_id, kind, version=version)
        if kind != timed_plans._KIND or found is None:
            return found
        values, arrays = found
        if how == "absent":
            arrays = {key: each for key, each in arrays.items() if key != name}
        elif how == "wide":
            arrays[name] = np.concatenate([arrays[name], arrays[name]], axis=1)
        elif how == "strange":
            arrays[name] = arrays[name].astype(np.float64)
        else:
            arrays[name] = arrays[name][:-1]
        return values, arrays

    monkeypatch.setattr(cache, "load", damaged)
    timed = Opened(program).plans.timed
    assert not timed._plans
    assert not timed._exits
