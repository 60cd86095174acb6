"""Operations on maps in LLVM's language; ``data/readers/maps.py`` has the algorithm and why it needs no locks."""

from collections.abc import Callable, Sequence
from functools import partial

from llvmlite import ir

from anyprobe.data.readers.maps import (
    CONTENDED,
    DROPPED,
    FREE,
    MARK,
    NODE_KEY,
    NODE_LINK,
    NODE_VALUE,
    NUMBER_MASK,
    ONE_VERSION,
    STEPS,
    USED,
    MapLayout,
)
from anyprobe.handlers.llvm.tables import hashed, same_key
from anyprobe.handlers.llvm.words import (
    I1,
    I64,
    I128,
    Local,
    Value,
    constant,
    exchange_if,
    increase,
    internal_function,
    load,
    pointer,
    store,
)

PAIR = ir.LiteralStructType([I64, I64])
_VERSION_MASK = ~(ONE_VERSION - 1) & (1 << 64) - 1


def map_get(builder: ir.IRBuilder, layout: MapLayout, base: Value, key: Sequence[Value]) -> tuple[Value, Value]:
    """Return whether a key is there (a bit) and its value. See ``handlers.llvm.updates``."""
    return _call(builder, layout, "get", _build_get, [base, *key])


def map_delete(builder: ir.IRBuilder, layout: MapLayout, base: Value, key: Sequence[Value]) -> tuple[Value, Value]:
    """Delete a key; return whether it was there (a bit) and its value. See ``handlers.llvm.updates``."""
    return _call(builder, layout, "delete", _build_delete, [base, *key])


def map_set(builder: ir.IRBuilder, layout: MapLayout, base: Value, key: Sequence[Value], value: Value) -> None:
    """Set the value of a key. See ``handlers.llvm.updates``."""
    _call(builder, layout, "set", _build_set, [base, *key, value])


def map_increase(
    builder: ir.IRBuilder, layout: MapLayout, base: Value, key: Sequence[Value], by: Value
) -> tuple[Value, Value]:
    """Add to the value of a key, 0 at first; return whether it was done (a bit) and the sum."""
    return _call(builder, layout, "increase", partial(_build_set, adds=True), [base, *key, by])


_Build = Callable[["_Operation", Sequence[Value]], None]


def _call(
    builder: ir.IRBuilder, layout: MapLayout, name: str, build: _Build, arguments: Sequence[Value]
) -> tuple[Value, Value]:
    """Call the function of an operation, which is built when it is first used."""
    name = f"map.{layout.map.capacity}.{layout.shape.words}.{name}"
    function = builder.module.globals.get(name)
    if function is None:
        function = internal_function(builder, name, PAIR, [I64] * len(arguments))
        operation = _Operation(ir.IRBuilder(function.append_basic_block("entry")), layout, function.args)
        build(operation, function.args[1 + layout.shape.words :])
    pair = builder.call(function, arguments)
    return builder.trunc(builder.extract_value(pair, 0), I1), builder.extract_value(pair, 1)


class _Nodes:
    """Addresses of nodes, and the words that lead to them."""

    def __init__(self, builder: ir.IRBuilder, layout: MapLayout, base: Value) -> None:
        self._builder, self._layout, self._base = builder, layout, base

    def address(self, number: Value) -> Value:
        """Return the address of a node."""
        builder = self._builder
        nodes = builder.add(self._base, constant(self._layout.nodes_offset))
        return builder.add(nodes, builder.mul(number, constant(self._layout.node_bytes)))

    def next_word(self, word: Value, number: Value) -> Value:
        """Return the word that follows ``word`` and leads to the node whose number is in the low half of another."""
        builder = self._builder
        version = builder.add(builder.and_(word, constant(_VERSION_MASK)), constant(ONE_VERSION))
        return builder.or_(version, builder.and_(number, constant(NUMBER_MASK)))


class _Operation:
    """One operation being built: the look-up, with what to do where the key is there and where it is not.

    Building leaves the builder at ``found`` or ``absent``; both go on to ``restart`` when another thread was faster.
    """

    def __init__(self, builder: ir.IRBuilder, layout: MapLayout, arguments: Sequence[Value]) -> None:
        """Emit the look-up."""
        self.builder, self.layout = builder, layout
        self.base, self.key = arguments[0], arguments[1 : 1 + layout.shape.words]
        self.nodes = _Nodes(builder, layout, self.base)
        bucket = builder.and_(hashed(builder, self.key), constant(layout.buckets - 1))
        self.bucket = builder.add(
            builder.add(self.base, builder.shl(bucket, constant(3))), constant(layout.buckets_offset)
        )
        names = ("restart", "step", "node", "intact", "dead", "alive", "further", "found", "absent", "given_up")
        for name in names:
            setattr(self, name, builder.append_basic_block(name))
        self._steps = Local(builder, constant(0))
        self._before, self._word = Local(builder, self.bucket), Local(builder, constant(0))
        self.held = Local(builder, constant(0))
        """Number of a free node that was taken and not used yet."""
        builder.branch(self.restart)
        builder.position_at_end(self.restart)
        self.first = Local(builder, load(builder, self.bucket))
        self._before.set(self.bucket)
        self._word.set(self.first.get())
        builder.branch(self.step)
        self._look_at_node()
        self._take_out()
        builder.position_at_end(self.given_up)
        increase(builder, self.base, CONTENDED, atomic=True)
        self.finish(constant(0), constant(0))

    restart: ir.Block
    step: ir.Block
    node: ir.Block
    intact: ir.Block
    dead: ir.Block
    alive: ir.Block
    further: ir.Block
    found: ir.Block
    absent: ir.Block
    given_up: ir.Block

    def _look_at_node(self) -> None:
        builder = self.builder
        builder.position_at_end(self.step)
        steps = builder.add(self._steps.get(), constant(1))
        self._steps.set(steps)
        word = self._word.get()
        number = builder.and_(word, constant(NUMBER_MASK))
        bounded = builder.append_basic_block("bounded")
        builder.cbranch(builder.icmp_unsigned("<=", steps, constant(STEPS)), bounded, self.given_up)
        builder.position_at_end(bounded)
        builder.cbranch(builder.icmp_unsigned("!=", number, constant(0)), self.node, self.absent)
        builder.position_at_end(self.node)
        self.number, self.address = number, self.nodes.address(number)
        self.link = load(builder, self.address, NODE_LINK)
        self.value = load(builder, self.address, NODE_VALUE)
        same = same_key(builder, self.address, self.key, NODE_KEY)
        unchanged = builder.icmp_unsigned("==", load(builder, self._before.get()), word)
        builder.cbranch(unchanged, self.intact, self.restart)
        builder.position_at_end(self.intact)
        marked = builder.icmp_unsigned("!=", builder.and_(self.link, constant(MARK)), constant(0))
        builder.cbranch(marked, self.dead, self.alive)
        builder.position_at_end(self.alive)
        builder.cbranch(same, self.found, self.further)
        builder.position_at_end(self.further)
        self._before.set(self.address)
        self._word.set(self.link)
        builder.branch(self.step)

    def _take_out(self) -> None:
        """Emit what is done about a dead node: take it out of the list and go on with the next."""
        builder = self.builder
        builder.position_at_end(self.dead)
        out = builder.append_basic_block("out")
        builder.cbranch(self.unlink(self.link), out, self.restart)
        builder.position_at_end(out)
        self._word.set(self.nodes.next_word(self._word.get(), self.link))
        self.free(self.number)
        builder.branch(self.step)

    def unlink(self, link: Value) -> Value:
        """Make the word before the current node lead to the next one; return whether no other thread was faster."""
        word = self._word.get()
        stored, _ = exchange_if(self.builder, self._before.get(), 0, word, self.nodes.next_word(word, link))
        return stored

    def exchange_pair(self, link: Value, value: Value) -> Value:
        """Exchange link and value of the current node at once if both are as they were read; return whether."""
        builder = self.builder
        place = pointer(builder, self.address, of=I128)
        old, new = self._pair(self.link, self.value), self._pair(link, value)
        return builder.extract_value(builder.cmpxchg(place, old, new, "seq_cst", "seq_cst"), 1)

    def _pair(self, low: Value, high: Value) -> Value:
        builder = self.builder
        return builder.or_(builder.zext(low, I128), builder.shl(builder.zext(high, I128), ir.Constant(I128, 64)))

    def finish(self, there: Value, value: Value) -> None:
        """Emit the end: a free node that was not needed goes back."""
        builder = self.builder
        with builder.if_then(builder.icmp_unsigned("!=", self.held.get(), constant(0)), likely=False):
            self.free(self.held.get())
        builder.ret(builder.insert_value(builder.insert_value(ir.Constant(PAIR, ir.Undefined), there, 0), value, 1))

    def free(self, number: Value) -> None:
        """Put a node on the list of free ones."""
        name = f"map.{self.layout.map.capacity}.{self.layout.shape.words}.free"
        function = self.builder.module.globals.get(name) or _free_function(self, name)
        self.builder.call(function, [self.base, number])

    def take(self) -> Value:
        """Return the number of a node that no other thread has, 0 if there is none."""
        name = f"map.{self.layout.map.capacity}.{self.layout.shape.words}.take"
        function = self.builder.module.globals.get(name) or _take_function(self, name)
        return self.builder.call(function, [self.base])


def _build_get(operation: _Operation, _: Sequence[Value]) -> None:
    builder = operation.builder
    builder.position_at_end(operation.found)
    operation.finish(constant(1), operation.value)
    builder.position_at_end(operation.absent)
    operation.finish(constant(0), constant(0))


def _build_delete(operation: _Operation, _: Sequence[Value]) -> None:
    builder = operation.builder
    builder.position_at_end(operation.found)
    marked, out, done = (builder.append_basic_block(name) for name in ("marked", "taken_out", "done"))
    dead = builder.or_(operation.link, constant(MARK))
    builder.cbranch(operation.exchange_pair(dead, operation.value), marked, operation.restart)
    builder.position_at_end(marked)
    builder.cbranch(operation.unlink(operation.link), out, done)
    builder.position_at_end(out)
    operation.free(operation.number)
    builder.branch(done)
    builder.position_at_end(done)
    operation.finish(constant(1), operation.value)
    builder.position_at_end(operation.absent)
    operation.finish(constant(0), constant(0))


def _build_set(operation: _Operation, arguments: Sequence[Value], *, adds: bool = False) -> None:
    """Build: set the value of a key, or add to it, and return what it is then."""
    builder, value = operation.builder, arguments[0]
    done, fill, changed = (builder.append_basic_block(name) for name in ("done", "fill", "changed"))
    builder.position_at_end(operation.found)
    result = builder.add(operation.value, value) if adds else value
    builder.cbranch(operation.exchange_pair(operation.link, result), changed, operation.restart)
    builder.position_at_end(changed)
    operation.finish(constant(1), result)
    builder.position_at_end(operation.absent)
    with builder.if_then(builder.icmp_unsigned("==", operation.held.get(), constant(0))):
        operation.held.set(operation.take())
    number = operation.held.get()
    full = builder.append_basic_block("full")
    builder.cbranch(builder.icmp_unsigned("!=", number, constant(0)), fill, full)
    builder.position_at_end(full)
    increase(builder, operation.base, DROPPED, atomic=True)
    operation.finish(constant(0), constant(0))
    builder.position_at_end(fill)
    node = operation.nodes.address(number)
    first = operation.first.get()
    store(builder, operation.nodes.next_word(load(builder, node, NODE_LINK), first), node, NODE_LINK)
    store(builder, value, node, NODE_VALUE)
    for index, word in enumerate(operation.key):
        store(builder, word, node, NODE_KEY + 8 * index)
    stored, _ = exchange_if(builder, operation.bucket, 0, first, operation.nodes.next_word(first, number))
    used = builder.append_basic_block("used")
    builder.cbranch(stored, used, operation.restart)
    builder.position_at_end(used)
    operation.held.set(constant(0))
    builder.branch(done)
    builder.position_at_end(done)
    operation.finish(constant(1), value)


def _free_function(operation: _Operation, name: str) -> ir.Function:
    """Build: push a node. Its link stays marked while it is free, and gets a new version each time."""
    function = internal_function(operation.builder, name, ir.VoidType(), [I64, I64])
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    base, number = function.args
    inner = _Nodes(builder, operation.layout, base)
    node = inner.address(number)
    old = load(builder, node, NODE_LINK)
    tries = Local(builder, constant(0))
    again, done = builder.append_basic_block("again"), builder.append_basic_block("done")
    builder.branch(again)
    builder.position_at_end(again)
    free = load(builder, base, FREE)
    version = builder.add(builder.and_(old, constant(_VERSION_MASK)), constant(ONE_VERSION | MARK))
    store(builder, builder.or_(version, builder.and_(free, constant(NUMBER_MASK))), node, NODE_LINK)
    stored, _ = exchange_if(builder, base, FREE, free, inner.next_word(free, number))
    tries.set(builder.add(tries.get(), constant(1)))
    given_up = builder.icmp_unsigned(">", tries.get(), constant(STEPS))
    builder.cbranch(builder.or_(stored, given_up), done, again)
    builder.position_at_end(done)
    builder.ret_void()
    return function


def _take_function(operation: _Operation, name: str) -> ir.Function:
    """Build: pop a free node; without one, take a node that was never used."""
    layout = operation.layout
    function = internal_function(operation.builder, name, I64, [I64])
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    (base,) = function.args
    inner = _Nodes(builder, layout, base)
    tries = Local(builder, constant(0))
    blocks = ("again", "pop", "fresh", "claim", "claimed", "none")
    again, pop, fresh, claim, claimed, none = (builder.append_basic_block(block) for block in blocks)
    builder.branch(again)
    builder.position_at_end(again)
    free = load(builder, base, FREE)
    number = builder.and_(free, constant(NUMBER_MASK))
    tries.set(builder.add(tries.get(), constant(1)))
    there = builder.icmp_unsigned("!=", number, constant(0))
    patient = builder.icmp_unsigned("<=", tries.get(), constant(STEPS))
    builder.cbranch(builder.and_(there, patient), pop, fresh)
    builder.position_at_end(pop)
    after = load(builder, inner.address(number), NODE_LINK)
    stored, _ = exchange_if(builder, base, FREE, free, inner.next_word(free, after))
    popped = builder.append_basic_block("popped")
    builder.cbranch(stored, popped, again)
    builder.position_at_end(popped)
    builder.ret(number)
    builder.position_at_end(fresh)
    builder.cbranch(builder.icmp_unsigned("<", load(builder, base, USED), constant(layout.nodes)), claim, none)
    builder.position_at_end(claim)
    used = builder.atomic_rmw("add", pointer(builder, base, USED), constant(1), "monotonic")
    builder.cbranch(builder.icmp_unsigned("<", used, constant(layout.nodes)), claimed, none)
    builder.position_at_end(claimed)
    builder.ret(builder.add(used, constant(1)))
    builder.position_at_end(none)
    builder.ret(constant(0))
    return function
