"""What is remembered of entry probes: for whom it holds, and what becomes of it when it is damaged."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.binary.objects import cache
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.entry_plans import EntryPlans
from anyprobe.splice.plan.splices import Clobbers, Want, WantKind
from support.planning import planner_for


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copy("/usr/bin/env", tmp_path / "program"))


def opened(path):
    image = Image.open(str(path))
    return CodeMap(image.text()), image.build_id


def remembered(path):
    """Plan the first entry that takes a jump, keep that, and return the function with what was kept of it."""
    code, build_id = opened(path)
    planner = planner_for(code, Claims(), lambda _: False)
    functions = (code.function_at(start) for start in code.text.function_starts.tolist())
    for function in functions:
        if isinstance(function, FunctionCode):
            plan = planner.plan(function, [Want(function.entry, WantKind.ENTRY)])
            if len(plan.splices) == 1 and plan.splices[0].written == 5:
                break
    plans = EntryPlans(code.text, build_id)
    plans.remember(function.start, plan.splices[0])
    plans.note_clobbers(plan.splices[0].wants[0], Clobbers(("r11",), flags=True), skipping=False)
    plans.save()
    return function, plan.splices[0]


def found(path, function):
    code, build_id = opened(path)
    return EntryPlans(code.text, build_id).find(function.start, Want(function.entry, WantKind.ENTRY))


def test_a_plan_is_found_again(program):
    function, splice = remembered(program)
    again = found(program, function)
    assert (again.head, again.end) == (splice.head, splice.end)
    assert [insn.raw for insn in again.insns] == [insn.raw for insn in splice.insns]


def test_a_file_with_other_code_and_the_same_build_id_is_planned_anew(program):
    function, _ = remembered(program)
    content = bytearray(program.read_bytes())
    content[content.rindex(b"\xc3")] = 0x90
    program.write_bytes(content)
    assert opened(program)[1] is not None
    assert found(program, function) is None


def test_another_version_of_ours_plans_anew(program, monkeypatch):
    function, _ = remembered(program)
    monkeypatch.setattr("anyprobe.splice.plan.entry_plans.state_of_code", lambda *_: 1)
    assert found(program, function) is None


@pytest.mark.parametrize("column", ["start", "member", "site"])
@pytest.mark.parametrize("damage", [lambda one: one[:-1], lambda one: one.astype(np.float64), lambda _: None])
def test_what_contradicts_itself_is_as_good_as_absent(program, column, damage):
    function, _ = remembered(program)
    build_id = opened(program)[1]
    values, arrays = cache.load(build_id, "entryplans", version=7)
    arrays["member"] = arrays["first"] = np.array([1, 2])
    assert arrays["site"].size == 1
    damaged = damage(arrays[column])
    kept = {name: each for name, each in arrays.items() if name != column}
    kept |= {column: damaged} if damaged is not None else {}
    cache.store(build_id, "entryplans", values, kept, version=7)
    assert found(program, function) is None


@pytest.mark.parametrize("bits", [1 << 63, 1 << 56, 5 << 56], ids=["negative", "eighth", "eighth's length"])
def test_shapes_of_more_instructions_than_there_can_be_are_as_good_as_absent(program, bits):
    function, _ = remembered(program)
    build_id = opened(program)[1]
    values, arrays = cache.load(build_id, "entryplans", version=7)
    assert (arrays["shape"] > 0).all()
    changed = arrays["shape"] | np.array(bits, np.uint64).astype(np.int64)
    cache.store(build_id, "entryplans", values, {**arrays, "shape": changed}, version=7)
    assert found(program, function) is None


def test_what_is_planned_together_is_not_kept_where_only_one_program_enters_it(program):
    code, build_id = opened(program)
    plans = EntryPlans(code.text, build_id)
    functions = [
        each for each in map(code.function_at, code.text.function_starts.tolist()) if isinstance(each, FunctionCode)
    ]
    plans.first_of(code, functions[0])
    code.add_entry(functions[-1].entry + 1)
    assert plans.first_of(code, functions[1]) is plans.first_of(code, functions[1])
    assert list(plans._firsts) == [functions[0].start]


def test_what_may_be_overwritten_is_told_for_each_kind_and_both_ways_of_faults(program):
    code, build_id = opened(program)
    plans = EntryPlans(code.text, build_id)
    entry, end = Want(0x1000, WantKind.ENTRY), Want(0x1000, WantKind.EXIT)
    plans.note_clobbers(entry, Clobbers(("r11", "rax"), flags=True), skipping=False)
    plans.note_clobbers(end, Clobbers(), skipping=True)
    plans.save()
    for known in (plans, EntryPlans(code.text, build_id)):
        assert known.clobbers(entry, skipping=False) == Clobbers(("r11", "rax"), flags=True)
        assert known.clobbers(end, skipping=True) == Clobbers()
        assert known.clobbers(entry, skipping=True) is None
        assert known.clobbers(end, skipping=False) is None
