"""What patches may overwrite: what is kept of that holds where no handler looks at registers."""

import shutil
from pathlib import Path

import pytest

from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.splice.apply.site_clobbers import SiteClobbers
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit, Module, Planned
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.entry_plans import EntryPlans
from anyprobe.splice.plan.splices import Clobbers, Want, WantKind
from anyprobe.splice.regions.banks import Hook
from support.planning import planner_for

FREE = Clobbers(("r11", "rax"), flags=True)
LIVE = Clobbers()


class Sites:
    """The entry of a function in which a handler may look at registers, or not."""

    def __init__(self, path):
        image = Image.open(str(path))
        code = CodeMap(image.text())
        self.module = Module("program", code, 0, 0, 1 << 32, plans=EntryPlans(code.text, image.build_id))
        functions = map(code.function_at, code.text.function_starts.tolist())
        self.function = next(each for each in functions if isinstance(each, FunctionCode) and len(each.insns) > 20)
        self.state = self.module.state_of(self.function)
        self.found = FREE
        self.clobbers = SiteClobbers(lambda: False, lambda *_: self.found)

    def of(self, kinds):
        wants = [Want(self.function.entry, kind, tag=Hook(ActionKind.COUNT)) for kind in kinds]
        plan = planner_for(self.module.code, Claims(), lambda _: False).plan(self.function, wants)
        edit = Edit(self.module, self.state, wants, planned=Planned(wants, plan))
        return self.clobbers.of(edit, wants[0])


@pytest.fixture
def sites(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Sites(Path(shutil.copy("/usr/bin/env", tmp_path / "program")))


@pytest.mark.parametrize("kinds", [[WantKind.ENTRY], [WantKind.ENTRY, WantKind.EXIT]], ids=["count", "time"])
def test_what_is_kept_is_not_for_registers_that_handlers_see(sites, kinds):
    assert sites.of(kinds) == FREE
    sites.found = LIVE
    assert sites.of(kinds) == FREE  # it is kept
    sites.module.show(sites.function.insns[5].address)
    assert sites.of(kinds) == LIVE


@pytest.mark.parametrize("kinds", [[WantKind.ENTRY], [WantKind.ENTRY, WantKind.EXIT]], ids=["count", "time"])
def test_what_is_found_for_handlers_is_not_kept(sites, kinds):
    sites.found = LIVE
    sites.module.show(sites.function.insns[5].address)
    assert sites.of(kinds) == LIVE
    sites.module.shown.clear()
    sites.found = FREE
    assert sites.of(kinds) == FREE
