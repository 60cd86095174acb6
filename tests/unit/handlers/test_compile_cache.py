"""Compiled handlers come out of the cache as if they had been compiled afresh, whatever was compiled before them."""

import linecache
import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from anyprobe.binary.objects import cache
from anyprobe.core.code import Input
from anyprobe.data.aggregates.aggregations import Count, Hist, Sum
from anyprobe.handlers import compile_cache
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.types import calling_convention
from anyprobe.handlers.types.annotations import NAMED, f32, f64, i8, i32, i64, ptr, u8, u16, u32, u64
from anyprobe.handlers.types.calling_convention import Prototype
from anyprobe.handlers.types.layouts import ArrayType, Struct
from anyprobe.handlers.x86.native import compile_native
from anyprobe.handlers.x86.trivial import trivial_code

SCALARS = (i8, u8, u16, i32, u32, i64, u64, f64, f32, ptr, ptr[u8], ptr[i32])
BIG = Struct("big", a=i64, b=i64, c=i64)
PAIR = Struct("pair", a=i64, b=f64)
RESULTS = (None, i32, u64, f64, BIG, PAIR)
OTHERS = (*SCALARS, BIG, PAIR, Struct("text", text=ArrayType(u8, 12)))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "anyprobe"


def handler(text, number, **names):
    """Return the function that a text defines."""
    file = f"<kept {number}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {**NAMED, **names}
    exec(compile(text, file, "exec"), names)  # noqa: S102
    return names["h"]


def drawn(rng, number):
    """Return a function's prototype, and a handler of it: its parameters are used by name, wherever they are passed."""
    used = [("x", rng.choice((i32, i64))), ("y", rng.choice((i32, i64)))]
    others = [(f"other{at}", rng.choice(OTHERS)) for at in range(rng.randint(0, 4))]
    parameters = [*used, *others]
    rng.shuffle(parameters)
    body = rng.choice(("key=(x, y)", "x * 3 + y // 2, key=(x,)", "y if x > 3 else x, key=(x & 7,)"))
    what = Count("what", by=("x", "y")) if body.startswith("key=(x, y)") else rng.choice((Sum, Hist))("what", by="x")
    result = rng.choice(RESULTS)
    text = f"def h(x, y):\n    what.add({body})\n"
    prototype = Prototype("f", tuple(parameters), result)
    return intermediate(handler(text, number, what=what), Setting(prototype=lambda: prototype, entry=True)), prototype


@pytest.mark.parametrize("seed", range(4))
def test_random_pairs_with_one_cache_are_what_fresh_compilation_makes_of_them(seed):
    rng = random.Random(seed)
    for pair in range(12):
        first, one = drawn(rng, f"{seed}.{pair}.0")
        second, other = drawn(rng, f"{seed}.{pair}.1")
        for lowered, prototype in ((first, one), (second, other), (first, one)):
            found = compile_cache.native_code(lowered)
            assert found == (trivial_code(lowered) or compile_native(lowered)), prototype
            where = dict(zip((name for name, _ in prototype.parameters), prototype.places, strict=True))
            read = {each.place for each in found.inputs if each.place}
            assert read <= {where["x"][0], where["y"][0]}, prototype


def test_one_parameter_in_another_register_is_another_entry():
    """One struct more that is returned in memory, and everything is a register further."""
    codes = []
    for result in (None, BIG):
        prototype = Prototype("f", (("x", i32),), result)
        function = handler("def h(x):\n    what.add(x, key=(x,))\n", result, what=Sum("what", by="x"))
        codes.append(
            compile_cache.native_code(intermediate(function, Setting(prototype=lambda p=prototype: p, entry=True)))
        )
    assert [[each.place for each in code.inputs if each.place] for code in codes] == [["rdi"], ["rsi"]]


def inputs_of(lowered):
    """Yield the handler with one field of one input changed."""
    for at, each in enumerate(lowered.inputs):
        for field, value in (
            ("index", each.index + 1),
            ("place", "r9"),
            ("name", "u64"),
            ("written", not each.written),
        ):
            changed = replace(each, **{field: value})
            if changed != each:
                yield lowered._replace(inputs=(*lowered.inputs[:at], changed, *lowered.inputs[at + 1 :]))


def test_every_field_of_an_input_is_part_of_the_key():
    function = handler("def h(x, y):\n    what.add(x + y, key=(x,))\n", "fields", what=Sum("what", by="x"))
    prototype = Prototype("f", (("x", i32), ("y", i32)), None)
    lowered = intermediate(function, Setting(prototype=lambda: prototype, entry=True))
    keys = [compile_cache.identity(each) for each in (lowered, *inputs_of(lowered))]
    assert len(set(keys)) == len(keys) > 6
    assert set(Input.__dataclass_fields__) == {"kind", "name", "index", "written", "place"}


def test_an_entry_with_other_inputs_is_not_used(monkeypatch):
    function = handler("def h(x):\n    what.add(x, key=(x,))\n", "other", what=Sum("what", by="x"))
    for places in (calling_convention.INTEGER_REGISTERS, ("rbx", *calling_convention.INTEGER_REGISTERS[1:])):
        monkeypatch.setattr(calling_convention, "INTEGER_REGISTERS", places)
        monkeypatch.setattr(compile_cache, "identity", lambda _: "one for all")
        prototype = Prototype("f", (("x", i32),), None)
        found = compile_cache.native_code(intermediate(function, Setting(prototype=lambda p=prototype: p, entry=True)))
        assert [each.place for each in found.inputs if each.place] == [places[0]]


def test_entries_of_earlier_formats_are_removed(folder):
    folder.mkdir()
    earlier = folder / f"{'0' * 64}-handler.v{cache.FORMAT - 1}"
    earlier.write_bytes(b"anyprobe-cache\n")
    later = folder / f"{'0' * 64}-handler.v{cache.FORMAT + 1}"
    later.write_bytes(b"anyprobe-cache\n")
    cache.store("1" * 64, "handler")
    assert sorted(os.listdir(folder)) == [later.name, f"{'1' * 64}-handler.v{cache.FORMAT}"]


WITHOUT_LLVM = """
import sys

sys.modules["llvmlite"] = None  # an import of it fails, as where it is not installed

from anyprobe.core.errors import TargetError
from anyprobe.data.aggregates.aggregations import Hist
from anyprobe.handlers.compile_cache import native_code
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.types.annotations import i64
from anyprobe.handlers.types.calling_convention import Prototype

what = Hist("what")


def h(x):
    what.add(x * 3 // 2)


try:
    native_code(intermediate(h, Setting(prototype=lambda: Prototype("f", (("x", i64),), None), entry=True)))
except TargetError as error:
    print(error)
"""


def test_a_handler_says_what_to_install_where_there_is_no_llvm(tmp_path):
    script = tmp_path / "without.py"
    script.write_text(WITHOUT_LLVM)
    environment = dict(os.environ, XDG_CACHE_HOME=str(tmp_path))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=180)
    assert "pip install 'anyprobe[handlers]'" in done.stdout, done.stderr
