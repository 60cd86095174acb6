"""Going up the program's stack in LLVM's language; ``data.layouts.unwinding`` has the tables.

The stack is read by the routine ``read``, which knows the thread's own, or by ``peek`` where that ends, a window at a
time: nothing is touched that is not there. Where no
table knows the code, ``rbp`` is taken for a frame pointer if it can be one. A return address that is in no code ends
the stack.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from anyprobe.binary.unwind.rules import (
    AT_RBP,
    END,
    FRAME_LIMIT,
    NONE,
    OF_RBP,
    OF_RSP,
    OFFSET_SHIFT,
    SAVED_MASK,
    SAVED_SHIFT,
    SIGNAL,
    SIGNAL_RBP,
    SIGNAL_RIP,
    SIGNAL_RSP,
    STUB,
)
from anyprobe.data.layouts import unwinding
from anyprobe.handlers.llvm.words import I64, Local, Value, constant, internal_function, load, pointer

UNKNOWN = (1 << 64) - 1
"""Instead of a rule: there is no code at the address."""
_PRESERVING = "preserve_mostcc"


@dataclass(frozen=True, slots=True)
class Reading:
    """Where the tables are, and the routines that read the stack, as values."""

    tables: Value
    read: Value
    peek: Value


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hit is, as values; ``at_entry``: the return address is on top of the stack, whatever the tables say."""

    ip: Value
    rsp: Value
    rbp: Value
    at_entry: bool = False


class Walk:
    """Emits the loop over the frames."""

    def __init__(self, builder: ir.IRBuilder, reading: Reading, frames: Value, depth: int) -> None:
        """Write at most ``depth`` addresses to ``frames``."""
        self._builder, self._tables, self._frames, self._depth = builder, reading.tables, frames, depth
        self.window = Window(builder, reading)

    def run(self, ip: Value, rsp: Value, rbp: Value, *, at_entry: bool) -> Value:
        """Fill the frames; return how many they are."""
        builder = self._builder
        pc, sp, bp = Local(builder, ip), Local(builder, rsp), Local(builder, rbp)
        back, after_sp, after_bp = (Local(builder, constant(0)) for _ in range(3))
        exact, after_exact = Local(builder, constant(1)), Local(builder, constant(0))
        count = Local(builder, constant(1))
        builder.store(ip, builder.gep(self._frames, [constant(0)]))
        top, done = builder.append_basic_block("frame"), builder.append_basic_block("walked")
        builder.branch(top)
        builder.position_at_end(top)
        key = builder.sub(pc.get(), builder.sub(constant(1), exact.get()))
        rule = builder.call(_find_function(builder), [self._tables, key])
        with builder.if_then(builder.icmp_unsigned("==", rule, constant(UNKNOWN))):
            # a caller that is no code is none; where the hit was is certain
            more = builder.icmp_unsigned(">", count.get(), constant(1))
            count.set(builder.sub(count.get(), builder.zext(more, I64)))
            builder.branch(done)
        full = builder.icmp_unsigned(">=", count.get(), constant(self._depth))
        ended = builder.icmp_unsigned("==", builder.and_(rule, constant(7)), constant(END))
        self._leave_if(builder.or_(full, ended), done)
        after_bp.set(bp.get())
        after_exact.set(constant(0))
        first = builder.icmp_unsigned("==", count.get(), constant(1))
        step = _Step(builder, self.window, rule, pc.get(), sp.get(), bp.get())
        step.emit(back, after_sp, after_bp, after_exact, first_at_entry=first if at_entry else None, end=done)
        self._leave_if(builder.icmp_unsigned("!=", self.window.failed.get(), constant(0)), done)
        self._leave_if(builder.icmp_unsigned("==", back.get(), constant(0)), done)
        pc.set(back.get())
        sp.set(after_sp.get())
        bp.set(after_bp.get())
        exact.set(after_exact.get())
        builder.store(back.get(), builder.gep(self._frames, [count.get()]))
        count.set(builder.add(count.get(), constant(1)))
        builder.branch(top)
        builder.position_at_end(done)
        return count.get()

    def _leave_if(self, condition: Value, target: ir.Block) -> None:
        builder = self._builder
        on = builder.append_basic_block("on")
        builder.cbranch(condition, target, on)
        builder.position_at_end(on)


class Window:
    """Emits reads of the stack, as a rule: from a copy of the part around the last one, or else by the routines."""

    def __init__(self, builder: ir.IRBuilder, reading: Reading) -> None:
        """Have read nothing yet."""
        self._builder, self._reading = builder, reading
        with builder.goto_entry_block():
            # where the copy is from, how much of it could be read, and the copy
            words = builder.alloca(ir.ArrayType(I64, 2 + unwinding.WINDOW_BYTES // 8))
            self._words = builder.bitcast(words, I64.as_pointer())
            for index in range(2):
                builder.store(constant(0), builder.gep(self._words, [constant(index)]))
        self.failed = Local(builder, constant(0))
        """Not 0 once something could not be read."""

    def word(self, address: Value) -> Value:
        """Return the word at an address of the stack, 0 with ``failed`` set where that cannot be read."""
        builder = self._builder
        window = builder.ptrtoint(self._words, I64)
        found = builder.call(self._function(), [window, address, self._reading.read, self._reading.peek])
        place = builder.gep(self._words, [found])
        missing = builder.icmp_unsigned("==", found, constant(0))
        self.failed.set(builder.or_(self.failed.get(), builder.zext(missing, I64)))
        value = Local(builder, constant(0))
        with builder.if_then(builder.not_(missing), likely=True):
            value.set(builder.load(place))
        return value.get()

    def _function(self) -> ir.Function:
        """Return the function that finds a word: its index in the window, 0 if it cannot be read."""
        outer, name = self._builder, "stack.word"
        function = outer.module.globals.get(name)
        if function is not None:
            return function
        function = internal_function(outer, name, I64, [I64] * 4)
        function.attributes.add("noinline")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        window, address, read, peek = function.args
        self._return_if_there(builder, window, address)
        copy = builder.add(window, constant(16))
        kind = ir.FunctionType(I64, [I64] * 3)
        whole = constant(unwinding.WINDOW_BYTES)

        def called(routine: Value) -> Value:
            pointed = builder.inttoptr(routine, kind.as_pointer())
            return builder.call(pointed, [copy, address, whole], cconv=_PRESERVING)

        size = Local(builder, whole)
        with builder.if_then(builder.icmp_unsigned("!=", called(read), constant(0)), likely=False):
            found = called(peek)
            size.set(builder.select(builder.icmp_signed(">", found, constant(0)), found, constant(0)))
        builder.store(address, pointer(builder, window))
        builder.store(size.get(), pointer(builder, window, 8))
        self._return_if_there(builder, window, address)
        builder.ret(constant(0))
        return function

    @staticmethod
    def _return_if_there(builder: ir.IRBuilder, window: Value, address: Value) -> None:
        offset = builder.sub(address, builder.load(pointer(builder, window)))
        size = builder.load(pointer(builder, window, 8))
        aligned = builder.icmp_unsigned("==", builder.and_(offset, constant(7)), constant(0))
        enough = builder.icmp_unsigned(">=", size, constant(8))
        inside = builder.icmp_unsigned("<=", offset, builder.sub(size, constant(8)))
        with builder.if_then(builder.and_(aligned, builder.and_(enough, inside))):
            builder.ret(builder.add(builder.lshr(offset, constant(3)), constant(2)))


class _Step:
    """Emits one step up, by the rule of where the frame is."""

    def __init__(self, builder: ir.IRBuilder, window: Window, rule: Value, pc: Value, sp: Value, bp: Value) -> None:
        self._builder, self._window = builder, window
        self._rule, self._pc, self._sp, self._bp = rule, pc, sp, bp
        half = ir.IntType(32)
        words = builder.sext(builder.ashr(builder.trunc(rule, half), ir.Constant(half, OFFSET_SHIFT)), I64)
        self._words, self._offset = words, builder.shl(words, constant(3))

    def emit(
        self, back: Local, after_sp: Local, after_bp: Local, after_exact: Local, *, first_at_entry: Value | None,
        end: ir.Block,
    ) -> None:  # fmt: skip
        """Set where the caller goes on and its registers; go to ``end`` where there is none."""
        builder, word = self._builder, self._window.word
        after = builder.append_basic_block("stepped")
        kind = builder.and_(self._rule, constant(7))
        frame = Local(builder, constant(0))
        blocks = {each: builder.append_basic_block(f"kind{each}") for each in range(SIGNAL + 1)}
        joined = builder.append_basic_block("framed")
        chosen = builder.switch(kind, end)
        for each, block in blocks.items():
            chosen.add_case(constant(each), block)

        def case(number: int, address: Callable[[], Value]) -> None:
            builder.position_at_end(blocks[number])
            frame.set(address())
            builder.branch(joined)

        case(OF_RSP, lambda: builder.add(self._sp, self._offset))
        case(OF_RBP, lambda: builder.add(self._bp, self._offset))
        case(STUB, self._stub)
        builder.position_at_end(blocks[AT_RBP])
        frame.set(word(builder.add(self._bp, self._offset)))
        after_bp.set(word(self._bp))
        builder.branch(joined)

        builder.position_at_end(blocks[SIGNAL])
        back.set(word(builder.add(self._sp, constant(SIGNAL_RIP))))
        after_sp.set(word(builder.add(self._sp, constant(SIGNAL_RSP))))
        after_bp.set(word(builder.add(self._sp, constant(SIGNAL_RBP))))
        after_exact.set(constant(1))
        builder.branch(after)

        builder.position_at_end(blocks[NONE])
        self._by_frame_pointer(back, after_sp, after_bp, first_at_entry=first_at_entry, end=end, after=after)

        builder.position_at_end(joined)
        up = builder.append_basic_block("up")
        builder.cbranch(builder.icmp_unsigned(">", frame.get(), self._sp), up, end)  # else it goes nowhere
        builder.position_at_end(up)
        back.set(word(builder.sub(frame.get(), constant(8))))
        after_sp.set(frame.get())
        saved = builder.and_(builder.lshr(self._rule, constant(SAVED_SHIFT)), constant(SAVED_MASK))
        with builder.if_then(builder.icmp_unsigned("!=", saved, constant(0))):
            after_bp.set(word(builder.sub(frame.get(), builder.shl(saved, constant(3)))))
        builder.branch(after)
        builder.position_at_end(after)

    def _stub(self) -> Value:
        """Return the frame address in a linkage stub, which pushes between two of its instructions."""
        builder = self._builder
        low = builder.and_(self._pc, constant(15))
        pushed = builder.zext(builder.icmp_signed(">=", low, self._words), I64)
        return builder.add(self._sp, builder.add(constant(8), builder.shl(pushed, constant(3))))

    def _by_frame_pointer(
        self, back: Local, after_sp: Local, after_bp: Local, *, first_at_entry: Value | None, end: ir.Block,
        after: ir.Block,
    ) -> None:  # fmt: skip
        builder, word = self._builder, self._window.word
        if first_at_entry is not None:
            with builder.if_then(first_at_entry):
                back.set(word(self._sp))
                after_sp.set(builder.add(self._sp, constant(8)))
                builder.branch(after)
        above = builder.icmp_unsigned("<", builder.sub(self._bp, self._sp), constant(FRAME_LIMIT))
        aligned = builder.icmp_unsigned("==", builder.and_(self._bp, constant(7)), constant(0))
        follow = builder.append_basic_block("frame_pointer")
        builder.cbranch(builder.and_(above, aligned), follow, end)
        builder.position_at_end(follow)
        after_bp.set(word(self._bp))
        back.set(word(builder.add(self._bp, constant(8))))
        after_sp.set(builder.add(self._bp, constant(16)))
        builder.branch(after)


def _find_function(outer: ir.IRBuilder) -> ir.Function:
    """Return the function that finds the rule for an address: ``NONE`` where no row has one, ``UNKNOWN`` in no code."""
    name = "stack.rule"
    function = outer.module.globals.get(name)
    if function is not None:
        return function
    function = internal_function(outer, name, I64, [I64] * 2)
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    tables, address = function.args
    start = function.append_basic_block("start")
    builder.branch(start)
    builder.position_at_end(start)
    with builder.if_then(builder.icmp_unsigned("==", tables, constant(0))):
        builder.ret(constant(NONE))
    directory = builder.add(tables, load(builder, tables, unwinding.CURRENT))
    ranges = builder.add(directory, constant(8))

    def range_at(number: Value) -> Value:
        return builder.add(ranges, builder.mul(number, constant(unwinding.RANGE_BYTES)))

    number = _last_not_above(
        builder, builder.load(pointer(builder, directory)), address,
        lambda at: builder.load(pointer(builder, range_at(at), unwinding.FIRST)),
    )  # fmt: skip
    with builder.if_then(builder.icmp_unsigned("==", number, constant(0))):
        builder.ret(constant(UNKNOWN))
    found = range_at(builder.sub(number, constant(1)))
    beyond = builder.icmp_unsigned(">=", address, builder.load(pointer(builder, found, unwinding.LAST)))
    with builder.if_then(beyond):
        builder.ret(constant(UNKNOWN))
    count = builder.load(pointer(builder, found, unwinding.COUNT))
    rows = builder.add(tables, builder.load(pointer(builder, found, unwinding.ROWS)))
    offset = builder.sub(address, builder.load(pointer(builder, found, unwinding.BASE)))
    half = ir.IntType(32)

    def narrow(place: Value) -> Value:
        return builder.zext(builder.load(builder.inttoptr(place, half.as_pointer())), I64)

    row = _last_not_above(builder, count, offset, lambda at: narrow(builder.add(rows, builder.shl(at, constant(2)))))
    with builder.if_then(builder.icmp_unsigned("==", row, constant(0))):
        builder.ret(constant(NONE))
    rules = builder.add(rows, builder.shl(count, constant(2)))
    builder.ret(narrow(builder.add(rules, builder.shl(builder.sub(row, constant(1)), constant(2)))))
    return function


def _last_not_above(builder: ir.IRBuilder, count: Value, wanted: Value, at: Callable[[Value], Value]) -> Value:
    """Emit a binary search; return the number of elements that are not above ``wanted``."""
    low, high = Local(builder, constant(0)), Local(builder, count)
    top, look, done = (builder.append_basic_block(name) for name in ("search", "look", "searched"))
    builder.branch(top)
    builder.position_at_end(top)
    builder.cbranch(builder.icmp_unsigned("<", low.get(), high.get()), look, done)
    builder.position_at_end(look)
    middle = builder.lshr(builder.add(low.get(), high.get()), constant(1))
    below = builder.icmp_unsigned("<=", at(middle), wanted)
    low.set(builder.select(below, builder.add(middle, constant(1)), low.get()))
    high.set(builder.select(below, high.get(), middle))
    builder.branch(top)
    builder.position_at_end(done)
    return low.get()
