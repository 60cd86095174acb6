"""What generated code takes of the program's stack, along every way through it, is what is said of it."""

from dataclasses import replace
from itertools import product

import pytest

from anyprobe.core.code import NativeCode
from anyprobe.data.layouts.layout import BankLayout
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen import stack_needs
from anyprobe.splice.codegen.handlers.alone import assemble_handler_call
from anyprobe.splice.codegen.handlers.facts import HandlerFacts
from anyprobe.splice.codegen.handlers.memory_routines import NAMES, ReadingFacts, emit_memory_routines
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode, PatchWriter
from anyprobe.splice.codegen.routines import RoutineFacts, assemble_routines
from anyprobe.splice.codegen.timing.trampoline import assemble_trampolines
from anyprobe.splice.plan.splices import Clobbers
from support.stack_depths import depth
from unit.splice.codegen.handlers.test_call import EVERY, RET

ADDRESS, TRAMPOLINES, PATCH = 0x7000_0000, 0x7001_0000, 0x7002_0000
CALLED = 128 + 8 + 8
"""What a patch takes before a routine begins: the red zone, an argument, a return address."""
ENDS = ("leave", "leave_tail", "leave_caller", "unwind")
FREE = {
    "nothing": Clobbers(), "flags": Clobbers((), flags=True), "rax": Clobbers(("rax",)), "rcx": Clobbers(("rcx",)),
    "rcx-rdx": Clobbers(("rcx", "rdx")), "all": Clobbers(("rax", "rcx"), flags=True),
}  # fmt: skip


def made(*, clock=0, children=False, nested=False, returns=0, on_processors=False):
    layout = BankLayout(
        counters=4, records=2, maxactive=4, callers=4096, adopting=children, nested=nested, nodes=4096 * nested,
        by_thread=children, returns=returns, on_processors=on_processors,
    )  # fmt: skip
    adopted = 0x7100_0C00 if children else 0
    facts = RoutineFacts(layout, 0x7100_0000, 0x7200_0000, 0x200, clock=clock, adopted=adopted, closed=0x7100_0D00)
    return facts, *assemble_routines(facts, ADDRESS)[:2]


@pytest.mark.parametrize("clobbers", FREE.values(), ids=FREE)
def test_counters(clobbers):
    _, code, routines = made()
    count = depth(code, ADDRESS, routines.count)
    writer = PatchWriter(PATCH)
    writer.action(Action(ActionKind.COUNT, 64, BankCode(0x200, ADDRESS - 64, 0, routines)), clobbers)
    writer.raw(RET)
    assert depth(writer.finish(), PATCH, PATCH, {routines.count: count}) <= stack_needs.COUNTED
    if clobbers == FREE["nothing"]:
        assert depth(writer.finish(), PATCH, PATCH, {routines.count: count}) == stack_needs.COUNTED


def test_timed_calls():
    most = {"own": 0, "clock": 0, "child": 0}
    for nested, clock, children in product((False, True), (0, 0x7FFF_1234_5670), (False, True)):
        _, code, routines = made(nested=nested, clock=clock, children=children)
        names = [name for name in ("enter", *ENDS) if getattr(routines, name)]
        case = "clock" if clock else "child" if children else "own"
        most[case] = max(most[case], *(CALLED + depth(code, ADDRESS, getattr(routines, name)) for name in names))
        if children and not clock:  # a counter that keeps two registers
            most["child"] = max(most["child"], CALLED + 16 + depth(code, ADDRESS, routines.count))
    assert most["own"] == stack_needs.TIMED
    assert stack_needs.FORKED - 8 <= most["child"] <= stack_needs.FORKED
    _, code, routines = made(nested=True, on_processors=True)
    ways = [depth(code, ADDRESS, getattr(routines, name)) for name in ("enter", *ENDS)]
    assert CALLED + max(ways) == stack_needs.PROCESSORS_ASKED
    assert stack_needs.CLOCK_CALLED - 8 <= most["clock"] <= stack_needs.CLOCK_CALLED


def test_replaced_return_addresses():
    for nested in (False, True):
        facts, code, routines = made(nested=nested, returns=64)
        starts = [start for name in ("count", "enter", *ENDS, "purge", "settle") if (start := getattr(routines, name))]
        known = {start: depth(code, ADDRESS, start) for start in starts}
        content, trampolines, _ = assemble_trampolines(replace(facts, adopt=routines.adopt), routines, TRAMPOLINES)
        entered = [depth(content, TRAMPOLINES, at, known) for at in (trampolines.enter, trampolines.enter_counted)]
        came_back = depth(content, TRAMPOLINES, trampolines.stubs, known) - 8  # its call pushes where the return was
        assert max(CALLED + max(entered), came_back) <= stack_needs.REPLACED


@pytest.mark.parametrize("strings", [frozenset(), frozenset({"df"})])
def test_handlers(strings):
    code = NativeCode(RET, EVERY, strings, 8, 1)
    handler = HandlerFacts(code, (0x5000,), 0x4000, instances=0x3000, enters=True, nanoseconds=1 << 31, pid=77)
    facts = RoutineFacts(BankLayout(8), ADDRESS, 0x6000_0000, 0x200)
    content, entry, _ = assemble_handler_call(facts, handler, ADDRESS)
    asm = Assembler()
    emit_memory_routines(asm, NAMES, ReadingFacts(pid=77, gate=0x5000, slot=8, closed=0x10_0000))
    read = asm.finish(ADDRESS)
    called = 8 + max(depth(read, ADDRESS, ADDRESS + asm.offset_of(name)) for name in NAMES)
    assert CALLED + depth(content, ADDRESS, entry) + called <= stack_needs.HANDLER_CALLED
