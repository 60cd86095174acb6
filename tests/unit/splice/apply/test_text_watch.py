"""Splices compared with memory, of modules that are plain objects."""

from types import SimpleNamespace

import pytest

from anyprobe.core.address import PAGE
from anyprobe.splice.apply.text_watch import OVERWRITTEN, STALE, TextWatch
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import FunctionState, Module
from anyprobe.splice.emitted import EmittedSplice, FunctionChange
from anyprobe.splice.plan.splices import Strategy, Want, WantKind
from anyprobe.splice.regions.banks import Hook

TEXT = 0x400000
OLD, NEW, OTHER = b"\x55\x48\x89\xe5\x5d", b"\xe9\1\2\3\4", b"\xe9\5\6\7\x08"


class CountingModule(Module):
    """A module that counts how often all of its splices are gone through."""

    walks = 0

    def splices(self):
        self.walks += 1
        return super().splices()


@pytest.fixture
def module():
    return CountingModule("m", SimpleNamespace(), 0, TEXT, TEXT + 4 * PAGE)


@pytest.fixture
def memory(plain_memory):
    return plain_memory(TEXT, 4 * PAGE)


def armed(module, memory, address, *, strategy=Strategy.JUMP, springboard=False):
    """Arm one function's entry."""
    hook = Hook(ActionKind.COUNT)
    want = Want(address, WantKind.ENTRY, tag=hook)
    planned = SimpleNamespace(strategy=strategy, wants=[want], start=address, end=address + len(OLD))
    hook.splice = splice = EmittedSplice(planned, 0, address, OLD, NEW, None, is_springboard=springboard)
    memory.write(address, NEW)
    state = module.functions[address] = FunctionState(SimpleNamespace(start=address))
    module.settle(state, [want], [splice])
    return hook, splice


def test_splices_are_grouped_once_per_change_of_the_module(module, memory):
    """Nothing is gone through again until something is armed; what is overwritten meanwhile is seen all the same."""
    watch = TextWatch()
    hooks = [armed(module, memory, TEXT + 0x100 * number)[0] for number in range(16)]
    for _ in range(5):
        assert watch.look([module], memory) == []
    assert module.walks == 1
    splice = hooks[3].splice
    memory.write(splice.address, OTHER)
    assert watch.look([module], memory) == [(splice, OVERWRITTEN)]
    assert (hooks[3].splice, module.walks) == (None, 1)
    memory.write(splice.address, NEW)
    assert watch.look([module], memory) == []
    assert (hooks[3].splice, module.walks) == (splice, 1)


def test_splices_that_come_and_go_are_seen(module, memory):
    """What was armed after a look is compared at the next one, what was taken out is not any more."""
    watch = TextWatch()
    first, gone = armed(module, memory, TEXT)
    assert watch.look([module], memory) == []
    later, splice = armed(module, memory, TEXT + PAGE)
    module.settle(module.functions[TEXT], [], [])
    memory.write(gone.address, OTHER)
    memory.write(splice.address, OTHER)
    assert watch.look([module], memory) == [(splice, OVERWRITTEN)]
    assert (first.splice, later.splice) == (gone, None)
    assert module.walks == 2


def test_another_module_is_grouped_by_itself(module, memory):
    """A change of one module has no other module's splices gone through again."""
    watch = TextWatch()
    other = CountingModule("other", SimpleNamespace(), 0, TEXT + 2 * PAGE, TEXT + 4 * PAGE)
    armed(module, memory, TEXT)
    armed(other, memory, TEXT + 2 * PAGE)
    watch.look([module, other], memory)
    armed(other, memory, TEXT + 3 * PAGE)
    watch.look([module, other], memory)
    assert (module.walks, other.walks) == (1, 2)


@pytest.mark.parametrize("how", [{"strategy": Strategy.TRAP}, {"springboard": True}])
def test_traps_and_springboards_are_not_compared(module, memory, how):
    """A debugger takes a trap's byte for its own, and a springboard is no site."""
    watch = TextWatch()
    _, splice = armed(module, memory, TEXT, **how)
    memory.write(splice.address, OTHER)
    assert watch.look([module], memory) == []


def test_a_change_elsewhere_costs_no_look_and_hides_nothing(module, memory, monkeypatch):
    """Probes that are armed one by one have their own pages read; what the program changes in others is still seen."""
    watch = TextWatch()
    _, splice = armed(module, memory, TEXT + 0x100)
    splice.planned.end = splice.address + len(NEW) + 3
    watch.begin([FunctionChange(TEXT, added=(splice,))], memory)
    memory.write(splice.address + len(NEW), b"\x90")
    _, other = armed(module, memory, TEXT + 2 * PAGE)
    read, pages = memory.read, []
    monkeypatch.setattr(memory, "read", lambda address, size: pages.append(address) or read(address, size))
    watch.begin([FunctionChange(TEXT, added=(other,))], memory)
    assert pages == [other.address]
    assert watch.look([module], memory) == [(splice, STALE)]
    assert watch.leaving([module]) == [splice]


def test_what_is_taken_out_has_only_its_own_bytes_taken_for_known(module, memory):
    """What the program changes beside a splice, on the next page, is told of other splices there all the same."""
    watch = TextWatch()
    _, gone = armed(module, memory, TEXT + PAGE - len(NEW))
    gone.planned.end = TEXT + PAGE + 3
    _, splice = armed(module, memory, TEXT + PAGE + 0x100)
    splice.planned.end = splice.address + len(NEW) + 3
    assert watch.look([module], memory) == []
    memory.write(splice.address + len(NEW), b"\x90")
    watch.begin([FunctionChange(TEXT, removed=(gone,))], memory)
    assert (splice, STALE) in watch.look([module], memory)
