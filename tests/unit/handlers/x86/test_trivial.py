"""Trivial handlers are made without LLVM, and do what LLVM's code does: the same bytes in memory, call by call."""

import random
import subprocess
import sys

import pytest

from anyprobe import Avg, Count, Hist, Max, Min, Sum, f64, i8, i16, i32, i64, ptr, u8, u16, u32, u64
from anyprobe.core.code import InputKind
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.x86.native import compile_native
from anyprobe.handlers.x86.trivial import trivial_code
from anyprobe.isa import disassemble
from support import inprocess, running

KINDS = (i8, i16, i32, i64, u8, u16, u32, u64)
EDGES = (0, 1, 2, 63, 64, 65, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
         1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 64)  # fmt: skip
count, total, mean = Count("count"), Sum("total"), Avg("mean")
least, most = Min("least"), Max("most")


def counts():
    count.add()


def retval(ctx):
    mean.add(ctx.retval)


def adder(kind, aggregation):
    def add(x: kind):
        aggregation.add(x)

    return add


def narrowed(kind, by):
    def add(x: kind):
        total.add(by(x))

    return add


def compared(kind, symbol, constant):
    def below(x: kind):
        if x < constant:
            count.add()

    def up_to(x: kind):
        if x <= constant:
            total.add(x)

    def above(x: kind):
        if x > constant:
            count.add()

    def from_there(x: kind):
        if x >= constant:
            total.add(x)

    def equal(x: kind):
        if x == constant:
            count.add()

    def other(x: kind):
        if x != constant:
            total.add(x)

    return {"<": below, "<=": up_to, ">": above, ">=": from_there, "==": equal, "!=": other}[symbol]


def guarded(x: i32):
    if x < -64:
        return
    if not x <= 1 << 20:
        return
    total.add(x)


def both(x: u8):
    if x > 3 and x != 65 and not (x < 5 or x > 250):
        count.add()


def named(x: i64):
    small = x < 64
    if small:
        mean.add(x)


CASES = [
    counts, retval, guarded, both, named,
    *(adder(kind, aggregation) for kind in (*KINDS, ptr) for aggregation in (total, mean, least, most)),
    *(narrowed(kind, by) for kind in KINDS for by in (i8, u16, i32, u64)),
    *(compared(kind, symbol, constant) for kind in KINDS for symbol in ("<", "<=", ">", ">=", "==", "!=")
      for constant in (64,)),
    *(compared(kind, symbol, -64) for kind in (i8, i64) for symbol in ("<", "<=", ">", ">=", "==", "!=")),
]  # fmt: skip


class Region:
    """A table, and what runs on it."""

    def __init__(self, handler, code):
        self.memory = inprocess.Region(handler.storages[0].layout.size)
        self.runner = running.Runner(code, {0: self.memory.address})

    def run(self, word, thread):
        self.runner.fill((word,), {"retval": word})
        for index, each in enumerate(self.runner.code.inputs):
            if each.kind is InputKind.THREAD:
                self.runner.words[index] = thread
        self.runner._call(running.ctypes.addressof(self.runner.words))


@pytest.mark.parametrize("handler", CASES, ids=lambda handler: handler.__qualname__)
def test_it_does_what_llvm_s_code_does(handler):
    lowered = intermediate(handler, Setting())
    code = trivial_code(lowered)
    assert code is not None
    chosen = random.Random(1)
    pair = Region(lowered, code), Region(lowered, compile_native(lowered))
    for word in (*EDGES, *(chosen.getrandbits(64) for _ in range(40))):
        for thread in (1, 0, 3, 1024, 1025, 1 << 40):
            for each in pair:
                each.run(word, thread)
    assert bytes(pair[0].memory.view) == bytes(pair[1].memory.view)


def test_what_it_leaves_changed_is_what_it_says():
    for handler in CASES:
        code = trivial_code(intermediate(handler, Setting()))
        text = [text for _, _, text in disassemble.format(code.code, 0)]
        written = {each.split()[1].rstrip(",") for each in text if each.startswith(("mov", "imul", "dec", "lea"))}
        registers = written - {"qword"}
        assert {{"eax": "rax", "edi": "rdi"}.get(each, each) for each in registers} | {"flags"} == code.clobbers
        assert "(bad)" not in text


spread, by_key, words = Hist("spread"), Count("by key", by=("n",)), Sum("words")


def spread_of(x: u64):
    spread.add(x)


def keyed(x: u64):
    by_key[x].add()


def twice(x: u64):
    count.add()
    count.add()


def computed(x: u64):
    words.add(x + 1)


def one_of(x: u64):
    if x == 1 or x > 3:
        count.add()


def between(x: u8):
    if x > 1 and x < 200 and x != 5 and (x != 7) == (x > 8):
        count.add()


def either(x: u64):
    if x:
        count.add()
    else:
        words.add(x)


def wide(x: u64):
    if x > 1 << 40:
        count.add()


def of_floats(x: f64):
    if x > 1:
        count.add()


@pytest.mark.parametrize("handler", [spread_of, keyed, twice, computed, one_of, between, either, wide, of_floats])
def test_everything_else_is_llvm_s(handler):
    assert trivial_code(intermediate(handler, Setting())) is None


def test_no_compiler_is_loaded_for_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from anyprobe import Count, u64\n"
        "from anyprobe.handlers.compiler import native\n"
        "large = Count('large')\n"
        "def on_malloc(size: u64):\n"
        "    if size > 64:\n"
        "        large.add()\n"
        "assert native(on_malloc).steps == 33\n"
        "assert not [name for name in sys.modules if name.startswith('llvmlite')]\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=180)
