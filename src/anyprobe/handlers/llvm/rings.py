"""Emitting a record in LLVM's language; ``data/readers/rings.py`` has the layout and why it needs no locks."""

from collections.abc import Sequence

from llvmlite import ir

from anyprobe.data.aggregates.records import Field
from anyprobe.data.readers.rings import (
    CONSUMED,
    CONSUMED_SEEN,
    FULL,
    HEAD_BYTES,
    MARGIN,
    NEXT_RING,
    PRODUCED,
    RETIRED,
    RING,
    ROW_BYTES,
    RingLayout,
)
from anyprobe.handlers.llvm.words import (
    I1,
    I64,
    Value,
    constant,
    exchange_if,
    fetch_increase,
    increase,
    internal_function,
    load,
    pointer,
    store,
)


def emit(
    builder: ir.IRBuilder, layout: RingLayout, base: Value, thread: Value, values: Sequence[Value],
    now: Value | None = None,
) -> None:  # fmt: skip
    """Write a record into the ring of a thread. See ``handlers.llvm.updates``."""
    done = builder.append_basic_block("emitted")
    row, ring, own = _place(builder, layout, base, thread)
    _unless(builder, _has_room(builder, layout, row, own), row, done)
    position = _position(builder, row, own)
    place = builder.and_(position, constant(layout.slots - 1))
    slot = builder.add(builder.add(base, ring), builder.mul(place, constant(layout.record.bytes)))
    lap = builder.lshr(position, constant(layout.slots.bit_length() - 1))
    _unless_retired(builder, load(builder, slot), lap, row, done)
    for field, offset, value in zip(layout.record.fields, layout.record.offsets, values, strict=False):
        store_field(builder, field, builder.add(slot, constant(offset)), value)
    moment = _cycles(builder) if now is None else now
    parity = builder.and_(builder.not_(lap), constant(1))
    store(builder, builder.or_(builder.shl(moment, constant(1)), parity), slot)
    builder.branch(done)
    builder.position_at_end(done)


def _place(builder: ir.IRBuilder, layout: RingLayout, base: Value, thread: Value) -> tuple[Value, Value, Value]:
    """Return the row and the ring (its offset) of a thread, and whether they are its own or those for all others."""
    names = ("numbered", "own_ring", "shared_ring", "place")
    numbered, own_ring, shared_ring, place = (builder.append_basic_block(name) for name in names)
    rows = builder.add(base, constant(HEAD_BYTES))
    has_number = builder.icmp_unsigned("<", builder.sub(thread, constant(1)), constant(layout.threads))
    builder.cbranch(has_number, numbered, shared_ring)
    builder.position_at_end(numbered)
    own_row = builder.add(rows, builder.mul(thread, constant(ROW_BYTES)))
    claimed = _ring(builder, layout, base, own_row)
    builder.cbranch(builder.icmp_unsigned("!=", claimed, constant(0)), own_ring, shared_ring)
    builder.position_at_end(own_ring)
    builder.branch(place)
    builder.position_at_end(shared_ring)
    builder.branch(place)
    builder.position_at_end(place)
    row, ring, own = builder.phi(I64), builder.phi(I64), builder.phi(I1)
    for phi, mine, others in (
        (row, own_row, rows),
        (ring, claimed, constant(layout.shared_offset)),
        (own, ir.Constant(I1, 1), ir.Constant(I1, 0)),
    ):
        phi.add_incoming(mine, own_ring)
        phi.add_incoming(others, shared_ring)
    return row, ring, own


def _position(builder: ir.IRBuilder, row: Value, own: Value) -> Value:
    """Take the next position: among signal handlers of this thread by ``xadd``, among threads by ``lock xadd``."""
    with builder.if_else(own, likely=True) as (mine, others):
        with mine:
            alone, end_alone = fetch_increase(builder, row, PRODUCED), builder.block
        with others:
            shared = builder.atomic_rmw("add", pointer(builder, row, PRODUCED), constant(1), "seq_cst")
            end_shared = builder.block
    position = builder.phi(I64)
    position.add_incoming(alone, end_alone)
    position.add_incoming(shared, end_shared)
    return position


def _unless(builder: ir.IRBuilder, condition: Value, row: Value, done: ir.Block) -> None:
    """Count a drop and leave, unless a condition holds."""
    dropped, further = builder.append_basic_block("dropped"), builder.append_basic_block("further")
    branch = builder.cbranch(condition, further, dropped)
    branch.set_weights([1 << 20, 1])
    builder.position_at_end(dropped)
    increase(builder, row, FULL, atomic=True)
    builder.branch(done)
    builder.position_at_end(further)


def _unless_retired(builder: ir.IRBuilder, time: Value, lap: Value, row: Value, done: ir.Block) -> None:
    """Leave where the place is retired; count a drop, unless it is this record that the reader has given up."""
    retired, further = builder.append_basic_block("retired"), builder.append_basic_block("usable")
    branch = builder.cbranch(builder.icmp_unsigned("<", time, constant(RETIRED)), further, retired)
    branch.set_weights([1 << 20, 1])
    builder.position_at_end(retired)
    with builder.if_then(builder.icmp_unsigned("!=", time, builder.or_(lap, constant(RETIRED)))):
        increase(builder, row, FULL, atomic=True)
    builder.branch(done)
    builder.position_at_end(further)


def _has_room(builder: ir.IRBuilder, layout: RingLayout, row: Value, own: Value) -> Value:
    """Return whether there is a free place; the reader's cache line is looked at only if there seems to be none."""
    limit = builder.select(own, constant(layout.slots - MARGIN), constant(layout.slots - layout.shared_margin))
    produced = load(builder, row, PRODUCED)
    seen = builder.icmp_unsigned("<", builder.sub(produced, load(builder, row, CONSUMED_SEEN)), limit)
    before = builder.block
    with builder.if_then(builder.not_(seen), likely=False):
        consumed = load(builder, row, CONSUMED)
        store(builder, consumed, row, CONSUMED_SEEN)
        now = builder.icmp_unsigned("<", builder.sub(produced, consumed), limit)
        looked = builder.block
    room = builder.phi(seen.type)
    room.add_incoming(seen, before)
    room.add_incoming(now, looked)
    return room


def _ring(builder: ir.IRBuilder, layout: RingLayout, base: Value, row: Value) -> Value:
    """Return the offset of the thread's ring, claimed if it has none; 0 if none is left."""
    name = f"ring.{layout.rings}.{layout.ring_bytes}.{layout.rings_offset}.claim"
    claim = builder.module.globals.get(name) or _claim_function(builder, layout, name)
    ring = load(builder, row, RING)
    before = builder.block
    with builder.if_then(builder.icmp_unsigned("==", ring, constant(0)), likely=False):
        claimed = builder.call(claim, [base, row])
        asked = builder.block
    found = builder.phi(I64)
    found.add_incoming(ring, before)
    found.add_incoming(claimed, asked)
    return found


def _claim_function(builder: ir.IRBuilder, layout: RingLayout, name: str) -> ir.Function:
    """Build: take the next ring. A signal handler that claims one meanwhile wins, and a ring is lost, no record."""
    function = internal_function(builder, name, I64, [I64, I64])
    function.attributes.add("noinline")
    inner = ir.IRBuilder(function.append_basic_block("entry"))
    base, row = function.args
    with inner.if_then(inner.icmp_unsigned(">=", load(inner, base, NEXT_RING), constant(layout.rings))):
        inner.ret(constant(0))
    number = inner.atomic_rmw("add", pointer(inner, base, NEXT_RING), constant(1), "monotonic")
    with inner.if_then(inner.icmp_unsigned(">=", number, constant(layout.rings))):
        inner.ret(constant(0))
    offset = inner.add(inner.mul(number, constant(layout.ring_bytes)), constant(layout.rings_offset))
    stored, winner = exchange_if(inner, row, RING, constant(0), offset)
    inner.ret(inner.select(stored, offset, winner))
    return function


def store_field(builder: ir.IRBuilder, field: Field, address: Value, value: Value) -> None:
    """Store one field: a 64-bit integer is cut, a float is converted, a text comes as words."""
    if field.kind == "text":
        for index, word in enumerate(value):
            builder.store(word, pointer(builder, address, 8 * index))
    elif field.kind in {"f32", "f64"}:
        kind = ir.FloatType() if field.kind == "f32" else ir.DoubleType()
        if value.type != kind:
            value = builder.fptrunc(value, kind) if field.kind == "f32" else builder.fpext(value, kind)
        builder.store(value, pointer(builder, address, of=kind))
    else:
        kind = ir.IntType(8 * field.bytes)
        narrow = value if value.type == kind else builder.trunc(value, kind)
        builder.store(narrow, pointer(builder, address, of=kind))


def _cycles(builder: ir.IRBuilder) -> Value:
    """Return the time stamp counter (``rdtsc``)."""
    name = "llvm.readcyclecounter"
    function = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(I64, []), name)
    return builder.call(function, [])
