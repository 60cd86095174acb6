"""Random places of a small kernel, chosen and planned by another process."""

import os
from contextlib import nullcontext

import pytest

from anyprobe.target.kernel.symbols import Symbols
from support import place_planner
from support.builder import Builder
from support.place_planner import Batch
from support.small_kernel import SmallKernel, exception

BODY = (
    "mov eax, 1\n mov ecx, 2\n call callee\n mov edx, 3\n fault: mov esi, [rdi]\n mov edi, 4\n fixed: mov ebx, 5\n ret"
)
PATCHES, COUNTERS = 0xFFFF_FFFF_C000_0000, 0x1F000


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(place_planner.VARIABLE, raising=False)
    tables = {"exceptions": exception("fault", "fixed")}
    return SmallKernel.made(Builder(tmp_path), ("it", BODY), ("callee", "mov eax, 6\n mov ecx, 7\n ret"), **tables)


@pytest.fixture
def planner(kernel, monkeypatch):
    """Return who plans, in a process of its own, and knows of the kernel."""
    monkeypatch.setattr(place_planner.symbols, "running", lambda: Symbols(kernel.listing))
    monkeypatch.setattr(place_planner, "LiveMemory", lambda: nullcontext(kernel.memory))
    with place_planner.asking() as asked:
        asked.begin(Batch(1, 4))
        yield asked


def test_what_leads_to_each_other_is_in_pairs(planner):
    batch = Batch(seed=1, size=40, number=0)
    chosen = planner.ask("choose", batch)
    assert planner.ask("choose", batch) == chosen
    together = {frozenset(chosen.sites[number].address for number in pair) for pair in chosen.pairs}
    texts = {site.address: (site.name, site.offset) for site in chosen.sites}
    assert together
    for pair in together:
        assert len({texts[at][0] for at in pair}) == 1
    in_it = [sorted(texts[at][1] for at in pair) for pair in together if {texts[at][0] for at in pair} == {"it"}]
    # nothing behind a call, an instruction that may fault, or a fix-up is passed as often as what is before
    starts = [0, 15, 22, 27]
    parts = [{sum(start <= offset for start in starts) for offset in pair} for pair in in_it]
    assert all(len(each) == 1 for each in parts), in_it


def test_what_is_planned_leads_to_the_memory_that_was_given(planner):
    batch = Batch(seed=1, size=4)
    count = len(planner.ask("choose", batch).sites)
    code, (made,), refused = planner.ask("plan", batch, 2, PATCHES, [(COUNTERS, 8 * count)])
    counted = {number for each in made for number in each.numbers}
    assert counted
    assert counted | refused.keys() == set(range(count))
    for each in made:
        write = each.change.write
        target = write.address + 5 + int.from_bytes(write.new[1:5], "little", signed=True)
        assert PATCHES <= target < PATCHES + len(code)


def test_what_goes_wrong_is_told(planner):
    with pytest.raises(AssertionError, match="TypeError"):
        planner.ask("plan", Batch(1, 4), 2, PATCHES, None)


def test_a_command_has_somebody_beside(tmp_path):
    told = tmp_path / "told"
    command = ["sh", "-c", f'test -d "${place_planner.VARIABLE}" && echo it > {told}; exit 7']
    assert place_planner.main(command) == 7
    assert told.read_text() == "it\n"
    assert place_planner.VARIABLE not in os.environ
