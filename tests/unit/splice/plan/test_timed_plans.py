"""What is remembered of timed functions: where they end, and when it does not hold."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.binary.objects import cache
from anyprobe.splice.plan import timed_plans
from anyprobe.splice.plan.entry_plans import EntryPlans


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


def kept(program):
    """Keep where functions end."""
    opened = Opened(program)
    opened.exits()
    opened.plans.save()


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


def test_a_file_with_other_code_and_the_same_build_id_is_looked_at_anew(program):
    kept(program)
    content = bytearray(program.read_bytes())
    content[content.rindex(b"\xc3")] = 0x90
    program.write_bytes(content)
    after = Opened(program)
    assert not after.plans.timed._exits


NEEDED = ("exits", "parts", "why")
"""Arrays of which others say how long they are."""
DAMAGES = [(each, how) for each in sorted(timed_plans._SHAPES) for how in ("absent", "wide", "strange")]


@pytest.mark.parametrize(("name", "how"), [*DAMAGES, *((each, "shorter") for each in NEEDED)])
def test_what_does_not_fit_is_nothing(program, monkeypatch, name, how):
    kept(program)
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
    assert not timed._exits


def test_ends_are_not_kept_where_only_one_program_enters(program):
    opened = Opened(program)
    opened.code.add_entry(opened.functions[-1].entry + 1)
    opened.exits()
    opened.plans.save()
    assert not Opened(program).plans.timed._exits
