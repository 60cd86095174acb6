"""Updates of keyed tables in LLVM's language; ``data/readers/tables.py`` has the layout and why it needs no locks."""

from collections.abc import Sequence

from llvmlite import ir

from anyprobe.data.readers.tables import (
    DROPPED,
    MULTIPLIER,
    PROBES,
    ROW_HEAD_BYTES,
    SPARE_WORDS,
    SPARES,
    USED,
    TableLayout,
)
from anyprobe.handlers.llvm.cells import NativeWords, bucket_of, update_cell
from anyprobe.handlers.llvm.words import (
    I64,
    Local,
    Value,
    constant,
    exchange_if,
    internal_function,
    load,
    pointer,
    store,
)

_LOW = 0xFFFFFFFF


def add(
    builder: ir.IRBuilder, table: TableLayout, base: Value, thread: Value, value: Value | None = None,
    key: Sequence[Value] = (),
) -> None:  # fmt: skip
    """Add a value to the cell of a key, in the row of a thread. See ``handlers.llvm.updates``."""
    amount = constant(0) if value is None else value
    bucket = bucket_of(builder, table.aggregation, amount, signed=table.signed)
    number = _number(builder, table, base, key) if table.slots else None
    if table.rows == 1:
        _update_row(builder, table, builder.add(base, constant(table.rows_offset)), number, amount, bucket, atomic=True)
        return
    # threads without a number of their own are 0, which wraps to the largest
    own = builder.icmp_unsigned("<", builder.sub(thread, constant(1)), constant(table.rows - 1))
    shared_row = builder.add(base, constant(table.rows_offset))
    with builder.if_else(own, likely=True) as (mine, shared):
        with mine:
            row = builder.add(shared_row, builder.mul(thread, constant(table.stride)))
            _update_row(builder, table, row, number, amount, bucket, atomic=False)
        with shared:
            _update_row(builder, table, shared_row, number, amount, bucket, atomic=True)


def _update_row(
    builder: ir.IRBuilder, table: TableLayout, row: Value, number: Value | None, amount: Value, bucket: Value | None, *,
    atomic: bool,
) -> None:  # fmt: skip
    words = NativeWords(builder, atomic=atomic)
    aggregation, signed = table.aggregation, table.signed
    if number is None:
        cell = builder.add(row, constant(ROW_HEAD_BYTES))
        update_cell(builder, words, aggregation, cell, amount, bucket, signed=signed)
        return
    with builder.if_else(builder.icmp_unsigned("!=", number, constant(0)), likely=True) as (found, dropped):
        with found:
            cells = builder.add(row, constant(ROW_HEAD_BYTES - table.cell_bytes))
            cell = builder.add(cells, builder.mul(number, constant(table.cell_bytes)))
            update_cell(builder, words, aggregation, cell, amount, bucket, signed=signed)
        with dropped:
            words.increase(row, DROPPED)


def hashed(builder: ir.IRBuilder, key: Sequence[Value]) -> Value:
    """Return a hash of the words of a key; both its halves are good."""
    total = constant(len(key))
    for word in key:
        total = builder.mul(builder.xor(total, word), constant(MULTIPLIER))
        total = builder.xor(total, builder.lshr(total, constant(32)))
    return total


def same_key(builder: ir.IRBuilder, address: Value, key: Sequence[Value], offset: int = 0) -> Value:
    """Return whether the words at an address are the key's."""
    differences = [builder.xor(load(builder, address, offset + 8 * index), word) for index, word in enumerate(key)]
    total = differences[0]
    for difference in differences[1:]:
        total = builder.or_(total, difference)
    return builder.icmp_unsigned("==", total, constant(0))


def _number(builder: ir.IRBuilder, table: TableLayout, base: Value, key: Sequence[Value]) -> Value:
    """Return the number of a key, made if it is new; 0 if there is no room."""
    name = f"table.{table.slots}.{table.capacity}.{table.shape.words}"
    function = builder.module.globals.get(name + ".find")
    if function is None:
        insert = _insert_function(builder, table, name + ".insert")
        function = _find_function(builder, table, name + ".find", insert)
    return builder.call(function, [base, *key])


class _Probe:
    """The loop over the directory words of one hash, in a function that returns a number."""

    def __init__(
        self, builder: ir.IRBuilder, table: TableLayout, base: Value, place: Value, key: Sequence[Value]
    ) -> None:
        """Begin the loop at ``place``; the builder stands where a word has been read."""
        self.builder, self.table, self.base, self.key = builder, table, base, key
        self.next = builder.append_basic_block("next")
        self.full = builder.append_basic_block("full")
        self._step = Local(builder, constant(0))
        top = builder.append_basic_block("probe")
        builder.branch(top)
        builder.position_at_end(top)
        slot = builder.and_(builder.add(place, self._step.get()), constant(table.slots - 1))
        self.slot = builder.add(base, builder.shl(slot, constant(3)))
        self.word = load(builder, self.slot, table.directory_offset)
        after = self._step
        with builder.goto_block(self.next):
            step = builder.add(after.get(), constant(1))
            after.set(step)
            builder.cbranch(builder.icmp_unsigned("<", step, constant(PROBES)), top, self.full)

    def return_if_same(self, word: Value, tag: Value, before: "list[ir.Block] | None" = None) -> None:
        """Return the number in a word if its key is the one looked for, else go on with the next."""
        builder = self.builder
        same_tag, same = builder.append_basic_block("same_tag"), builder.append_basic_block("same")
        tags = builder.icmp_unsigned("==", builder.lshr(word, constant(32)), tag)
        builder.cbranch(tags, same_tag, self.next)
        builder.position_at_end(same_tag)
        number = builder.and_(word, constant(_LOW))
        builder.cbranch(
            same_key(builder, _key_address(builder, self.table, self.base, number), self.key), same, self.next
        )
        builder.position_at_end(same)
        if before is not None:
            before.append(builder.block)
            return
        builder.ret(number)


def _key_address(builder: ir.IRBuilder, table: TableLayout, base: Value, number: Value) -> Value:
    size = 8 * table.shape.words
    keys = builder.add(base, constant(table.keys_offset - size))
    return builder.add(keys, builder.mul(number, constant(size)))


def _find_function(builder: ir.IRBuilder, table: TableLayout, name: str, insert: ir.Function) -> ir.Function:
    """Build the look-up: the number of a key that is there, else what ``insert`` returns."""
    function = internal_function(builder, name, I64, [I64] * (1 + table.shape.words))
    function.attributes.add("alwaysinline")
    inner = ir.IRBuilder(function.append_basic_block("entry"))
    base, *key = function.args
    code = hashed(inner, key)
    tag = inner.lshr(code, constant(32))
    probe = _Probe(inner, table, base, code, key)
    taken, empty = inner.append_basic_block("taken"), inner.append_basic_block("empty")
    inner.cbranch(inner.icmp_unsigned("!=", probe.word, constant(0)), taken, empty)
    inner.position_at_end(empty)
    inner.ret(inner.call(insert, [base, *key]))
    inner.position_at_end(taken)
    probe.return_if_same(probe.word, tag)
    inner.position_at_end(probe.full)
    inner.ret(constant(0))
    return function


def _insert_function(builder: ir.IRBuilder, table: TableLayout, name: str) -> ir.Function:
    """Build the insertion of a key that was not there a moment ago.

    Take a number, write the key's words, then publish both by ``lock cmpxchg`` of the first empty directory word. Who
    loses the race for the word looks at the winner's key: the same one is used instead, another one is passed. Words
    are never emptied, so all who insert a key try the same words in the same order and it cannot come in twice. A
    thread that is interrupted for good in between costs a number, and no other waits for it.
    """
    function = internal_function(builder, name, I64, [I64] * (1 + table.shape.words))
    function.attributes.add("noinline")
    inner = ir.IRBuilder(function.append_basic_block("entry"))
    base, *key = function.args
    number = _take_number(inner, table, base)
    address = _key_address(inner, table, base, number)
    for index, word in enumerate(key):
        store(inner, word, address, 8 * index)
    code = hashed(inner, key)
    tag = inner.lshr(code, constant(32))
    published = inner.or_(inner.shl(tag, constant(32)), number)
    probe = _Probe(inner, table, base, code, key)
    seen = Local(inner, probe.word)
    with inner.if_then(inner.icmp_unsigned("==", probe.word, constant(0))):
        stored, found = exchange_if(inner, probe.slot, table.directory_offset, constant(0), published)
        with inner.if_then(stored):
            inner.ret(number)
        seen.set(found)
    other = seen.get()
    same: list[ir.Block] = []
    probe.return_if_same(other, tag, same)
    _give_back(inner, base, number)
    inner.ret(inner.and_(other, constant(_LOW)))
    inner.position_at_end(probe.full)
    _give_back(inner, base, number)
    inner.ret(constant(0))
    return function


def _take_number(builder: ir.IRBuilder, table: TableLayout, base: Value) -> Value:
    """Return an unused number; the function returns 0 if there is none."""
    number = Local(builder, constant(0))
    with builder.if_then(builder.icmp_unsigned("<", load(builder, base, USED), constant(table.capacity))):
        used = builder.atomic_rmw("add", pointer(builder, base, USED), constant(1), "monotonic")
        fits = builder.icmp_unsigned("<", used, constant(table.capacity))
        number.set(builder.select(fits, builder.add(used, constant(1)), constant(0)))
    for index in range(SPARE_WORDS):
        missing = builder.icmp_unsigned("==", number.get(), constant(0))
        there = builder.icmp_unsigned("!=", load(builder, base, SPARES + 8 * index), constant(0))
        with builder.if_then(builder.and_(missing, there)):
            spare = pointer(builder, base, SPARES + 8 * index)
            number.set(builder.atomic_rmw("xchg", spare, constant(0), "monotonic"))
    with builder.if_then(builder.icmp_unsigned("==", number.get(), constant(0))):
        builder.ret(constant(0))
    return number.get()


def _give_back(builder: ir.IRBuilder, base: Value, number: Value) -> None:
    """Put an unpublished number where the next one who finds the table full will look."""
    holding = Local(builder, number)
    for index in range(SPARE_WORDS):
        with builder.if_then(builder.icmp_unsigned("!=", holding.get(), constant(0))):
            stored, _ = exchange_if(builder, base, SPARES + 8 * index, constant(0), holding.get())
            holding.set(builder.select(stored, constant(0), holding.get()))
