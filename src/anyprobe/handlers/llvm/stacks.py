"""Taking stacks in LLVM's language: ``stackwalk`` finds them, ``data.layouts.stacks`` describes their table."""

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from anyprobe.data.layouts import stacks
from anyprobe.handlers.llvm.python_walk import PythonWalk
from anyprobe.handlers.llvm.stack_walk import Place, Reading, Walk
from anyprobe.handlers.llvm.words import (
    I64,
    Local,
    Value,
    constant,
    exchange_if,
    increase,
    internal_function,
    load,
    store,
)

_MULTIPLIER = 0x9E3779B97F4A7C15


def capture(
    builder: ir.IRBuilder, base: Value, reading: Reading, place: Place, depth: int, *, python: bool = False
) -> Value:
    """Return the number of the stack at a place, of at most ``depth`` addresses; ``python``: then Python's frames."""
    name = f"stack.capture.{depth}.{int(place.at_entry)}.{int(python)}"
    function = builder.module.globals.get(name)
    if function is None:
        function = _capture_function(builder, name, depth, at_entry=place.at_entry, python=python)
    return builder.call(function, [base, reading.tables, reading.read, reading.peek, place.ip, place.rsp, place.rbp])


def _capture_function(builder: ir.IRBuilder, name: str, depth: int, *, at_entry: bool, python: bool) -> ir.Function:
    function = internal_function(builder, name, I64, [I64] * 7)
    function.attributes.add("noinline")
    inner = ir.IRBuilder(function.append_basic_block("entry"))
    base, tables, read, peek, ip, rsp, rbp = function.args
    room = min(depth + stacks.PYTHON_DEPTH, stacks.DEPTH_LIMIT) if python else depth
    frames = inner.alloca(ir.ArrayType(I64, room))
    frames = inner.bitcast(frames, I64.as_pointer())
    start = function.append_basic_block("start")
    inner.branch(start)
    inner.position_at_end(start)
    walk = Walk(inner, Reading(tables, read, peek), frames, depth)
    count = walk.run(ip, rsp, rbp, at_entry=at_entry)
    if python:
        count = PythonWalk(inner, tables, walk.window, frames, room).run(count)
    inner.ret(number_of(inner, base, frames, count))
    return function


def number_of(builder: ir.IRBuilder, base: Value, frames: Value, count: Value) -> Value:
    """Emit the look-up of a stack; return its number, made if it is new, 0 if there is no place."""
    total = Local(builder, count)
    with _each(builder, count) as index:
        frame = builder.load(builder.gep(frames, [index]))
        mixed = builder.mul(builder.xor(total.get(), frame), constant(_MULTIPLIER))
        total.set(builder.xor(mixed, builder.lshr(mixed, constant(32))))
    code = builder.or_(total.get(), constant(1))
    step, result = Local(builder, constant(0)), Local(builder, constant(0))
    top, following, done = (builder.append_basic_block(name) for name in ("place", "next_place", "placed"))
    full = builder.append_basic_block("full")
    builder.branch(top)
    builder.position_at_end(following)
    step.set(builder.add(step.get(), constant(1)))
    builder.cbranch(builder.icmp_unsigned("<", step.get(), constant(stacks.PROBES)), top, full)
    builder.position_at_end(full)
    increase(builder, base, stacks.DROPPED, atomic=True)
    builder.branch(done)
    builder.position_at_end(top)
    number = builder.and_(builder.add(builder.lshr(code, constant(32)), step.get()), constant(stacks.PLACES - 1))
    offset = builder.add(builder.mul(number, constant(stacks.PLACE_BYTES)), constant(stacks.HEAD_BYTES))
    place = builder.add(base, offset)
    seen = Local(builder, load(builder, place, stacks.HASH))
    with builder.if_then(builder.icmp_unsigned("==", seen.get(), constant(0)), likely=False):
        stored, winner = exchange_if(builder, place, stacks.HASH, constant(0), code)
        seen.set(builder.select(stored, code, winner))
    own = builder.append_basic_block("same_hash")
    builder.cbranch(builder.icmp_unsigned("==", seen.get(), code), own, following)
    builder.position_at_end(own)
    result.set(builder.add(number, constant(1)))
    known = load(builder, place, stacks.COUNT)
    with builder.if_then(builder.icmp_unsigned("==", known, constant(0)), likely=False):
        with _each(builder, count) as index:
            target = builder.add(place, builder.shl(index, constant(3)))
            store(builder, builder.load(builder.gep(frames, [index])), target, stacks.FRAMES)
        store(builder, count, place, stacks.COUNT)
        builder.branch(done)
    differs = Local(builder, builder.zext(builder.icmp_unsigned("!=", known, count), I64))
    with _each(builder, builder.select(builder.icmp_unsigned("==", known, count), count, constant(0))) as index:
        target = builder.add(place, builder.shl(index, constant(3)))
        mine = builder.load(builder.gep(frames, [index]))
        difference = builder.xor(load(builder, target, stacks.FRAMES), mine)
        differs.set(builder.or_(differs.get(), difference))
    same = builder.icmp_unsigned("==", differs.get(), constant(0))
    result.set(builder.select(same, result.get(), constant(0)))
    builder.cbranch(same, done, following)
    builder.position_at_end(done)
    return result.get()


@contextmanager
def _each(builder: ir.IRBuilder, count: Value) -> Iterator[Value]:
    """Emit a loop over the numbers below a count."""
    index = Local(builder, constant(0))
    top, body, done = (builder.append_basic_block(name) for name in ("each", "body", "done"))
    builder.branch(top)
    builder.position_at_end(top)
    current = index.get()
    builder.cbranch(builder.icmp_unsigned("<", current, count), body, done)
    builder.position_at_end(body)
    yield current
    index.set(builder.add(current, constant(1)))
    builder.branch(top)
    builder.position_at_end(done)
