"""The x86-64 machine: from the intermediate language to code that can be copied to any address."""

from collections.abc import Callable

from llvmlite import ir as llvm

from anyprobe.core.code import MISSES, PYTHON, InputKind, Miss, NativeCode
from anyprobe.core.errors import InternalError
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import walk
from anyprobe.handlers.llvm import toolchain, updates
from anyprobe.handlers.llvm.arithmetic import I1, I64, number
from anyprobe.handlers.llvm.codegen import Lowering
from anyprobe.handlers.llvm.machine import Inputs, Pair, Value, flat
from anyprobe.handlers.llvm.object_file import linked
from anyprobe.handlers.passes import bounds
from anyprobe.handlers.types.annotations import FloatType, IntegerType, Type
from anyprobe.handlers.types.storages import MapTable, Ring, Stacks, Storage, Table
from anyprobe.handlers.x86.footprint import footprint

ENTRY, INNER = "handler", "handler.floats"
TRIPLE = "x86_64-unknown-linux-gnu"
PRESERVING, PRESERVING_ALL = "preserve_mostcc", "preserve_allcc"
MXCSR_DEFAULT = 0x1F80
"""All exceptions masked, rounding to nearest."""
_POINTER = I64.as_pointer()
_ATTRIBUTES = '"no-builtins" "no-jump-tables"="true" "frame-pointer"="none"'
_WITHOUT_FLOATS = '"target-features"="+cx16,-x87,-mmx,-sse,-sse2,-avx"'
_WITH_FLOATS = '"target-features"="+cx16,+sse2,-x87,-mmx,-avx"'


class NativeMachine:
    """x86-64: inputs are words in memory, memory is read by routines whose addresses are words."""

    floats = True

    def __init__(self, builder: llvm.IRBuilder, words: Value, inputs: Inputs, storages: tuple[Storage, ...]) -> None:
        """Generate with ``builder``; ``words`` points at the context."""
        self._builder, self._words, self._inputs, self._storages = builder, words, inputs, storages

    def _place(self, index: int) -> Value:
        return self._builder.gep(self._words, [number(index)])

    def word(self, index: int) -> Value:
        """Return a word of the context."""
        return self._builder.load(self._place(index))

    def set_word(self, index: int, value: Value) -> None:
        """Change a word of the context."""
        self._builder.store(value, self._place(index))

    def _input(self, kind: InputKind, name: str = "", index: int = 0) -> Value:
        return self.word(self._inputs.index(kind, name, index))

    def _routine(self, name: str, arguments: list[Value]) -> Value:
        """Call a routine; it preserves all registers but ``rax`` and ``r11``."""
        kind = llvm.FunctionType(I64, [I64] * len(arguments))
        routine = self._builder.inttoptr(self._input(InputKind.ROUTINE, name), kind.as_pointer())
        return self._builder.call(routine, arguments, cconv=PRESERVING)

    def read(self, address: Value, target: Value, size: int) -> Value:
        """Read bytes by the routine ``read(to, from, size)``, which returns 0 if it could."""
        failed = self._routine("read", [target, address, number(size)])
        return self._builder.icmp_unsigned("==", failed, number(0))

    def read_bytes(self, address: Value, target: Value, size: Value, limit: int, *, text: bool) -> tuple[Value, Value]:
        """Read bytes, or a text by the routine ``read_text(to, from, limit)``: its length, negative for none."""
        del limit  # ``size`` does not exceed it
        if text:
            length = self._routine("read_text", [target, address, size])
            return self._builder.icmp_signed(">=", length, number(0)), length
        failed = self._routine("read", [target, address, size])
        return self._builder.icmp_unsigned("==", failed, number(0)), size

    def read_comm(self, target: Value) -> tuple[Value, Value]:
        """Ask for the thread's name by the routine ``comm(to)``: its length, negative if it is not to be had."""
        length = self._routine("comm", [target])
        return self._builder.icmp_signed(">=", length, number(0)), length

    def read_cpu(self) -> tuple[Value, Value]:
        """Ask for the thread's time on processors by the routine ``cpu_time()``, negative if it is not to be had."""
        found = self._routine("cpu_time", [])
        return self._builder.icmp_signed(">=", found, number(0)), found

    def write(self, address: Value, source: Value, size: int) -> Value:
        """Write bytes by the routine ``write(to, from, size)``, which returns 0 if it could."""
        failed = self._routine("write", [address, source, number(size)])
        return self._builder.icmp_unsigned("==", failed, number(0))

    def count_miss(self, miss: Miss) -> None:
        """Count what went wrong; these are rare, so threads share the counters."""
        base = self._input(InputKind.MISSES)
        counter = self._builder.inttoptr(self._builder.add(base, number(8 * MISSES.index(miss))), _POINTER)
        self._builder.atomic_rmw("add", counter, number(1), "monotonic")

    def mark(self, place: ir.Mark) -> None:
        """Take no note: this code is checked by no other tool."""

    def instance(self, index: int) -> Value:
        """Return the address of the call's data."""
        return self.word(index)

    def update(self, storage: int, operation: ir.Update, values: list[Value], key: list[Value]) -> Pair | None:
        """Update an aggregation, a map or a ring by the code of ``updates``."""
        builder, store = self._builder, self._storages[storage]
        base = self._input(InputKind.STORAGE, index=storage)
        if isinstance(store, Table):
            thread = self._input(InputKind.THREAD) if store.layout.rows > 1 else number(0)
            updates.add(builder, store.layout, base, thread, values[0] if values else None, flat(key))
        elif isinstance(store, Ring):
            now = self._input(InputKind.CONTEXT, "now") if store.by_clock else None
            updates.emit(builder, store.layout, base, self._input(InputKind.THREAD), key, now)
        elif isinstance(store, Stacks):
            return self._capture(base, operation, values)
        elif operation.operation == "set":
            assert isinstance(store, MapTable)
            updates.map_set(builder, store.layout, base, flat(key), values[0])
        elif operation.operation == "increase":
            assert isinstance(store, MapTable)
            return updates.map_increase(builder, store.layout, base, flat(key), values[0])
        else:
            assert isinstance(store, MapTable)
            look_up = updates.map_get if operation.operation == "get" else updates.map_delete
            return look_up(builder, store.layout, base, flat(key))
        return None

    def _capture(self, base: Value, operation: ir.Update, values: list[Value]) -> Pair:
        from anyprobe.handlers.llvm import stacks
        from anyprobe.handlers.llvm.stack_walk import Place, Reading

        depth, at_entry, python = (each.value for each in operation.values[:3] if isinstance(each, ir.Const))
        ip, rsp, rbp = values[3:6]
        place = Place(ip, rsp, rbp, bool(at_entry))
        read, peek = (self._input(InputKind.ROUTINE, name) for name in ("read", "peek"))
        tables = self._input(InputKind.UNWINDING, PYTHON if python else "")
        reading = Reading(tables, read, peek)
        return llvm.Constant(I1, 1), stacks.capture(
            self._builder, base, reading, place, int(depth), python=bool(python)
        )


def compile_native(handler: ir.Function) -> NativeCode:
    """Compile a handler for x86-64."""
    inputs = Inputs(handler.inputs)
    module = llvm.Module(handler.name)
    module.triple = TRIPLE
    kind = llvm.FunctionType(I64 if handler.result is not None else llvm.VoidType(), [_POINTER])
    vectors = uses_floats(handler)
    body = entry = _function(module, kind, ENTRY, PRESERVING if vectors else "")
    if vectors:
        body = _function(module, kind, INNER, PRESERVING_ALL)
        body.linkage = "internal"
        body.attributes.add("noinline")
        _guard_mxcsr(entry, body)
    builder = llvm.IRBuilder(body.append_basic_block("entry"))
    start = body.append_basic_block("start")
    builder.branch(start)
    builder.position_at_end(start)
    machine = NativeMachine(builder, body.args[0], inputs, handler.storages)
    Lowering(builder, machine).run(handler, _finish(builder, handler.result))
    image = linked(_object(str(module), vectors=vectors), ENTRY)
    found = footprint(image.content[: image.code_bytes], preserving=vectors)
    returns = handler.result is not None
    clobbers = found.clobbers | ({"rax"} if returns else frozenset())
    steps = bounds.steps(handler)
    return NativeCode(image.content, tuple(inputs.all), clobbers, found.stack, steps, returns, vectors)


def _function(module: llvm.Module, kind: llvm.FunctionType, name: str, convention: str) -> llvm.Function:
    function = llvm.Function(module, kind, name)
    function.calling_convention = convention
    for attribute in ("noredzone", "noimplicitfloat", "nounwind"):
        function.attributes.add(attribute)
    return function


def _guard_mxcsr(entry: llvm.Function, inner: llvm.Function) -> None:
    """Emit the handler's entry: it calls what computes with floats under a rounding mode of its own.

    The program's control word comes back afterwards, with the exception flags that it had.
    """
    builder = llvm.IRBuilder(entry.append_basic_block("entry"))
    void, half = llvm.VoidType(), llvm.IntType(32)
    store, load = (
        llvm.Function(entry.module, llvm.FunctionType(void, [half.as_pointer()]), f"llvm.x86.sse.{name}mxcsr")
        for name in ("st", "ld")
    )
    saved, own = builder.alloca(half), builder.alloca(half)
    builder.call(store, [saved])
    builder.store(llvm.Constant(half, MXCSR_DEFAULT), own)
    builder.call(load, [own])
    value = builder.call(inner, entry.args, cconv=PRESERVING_ALL)
    builder.call(load, [saved])
    if isinstance(entry.ftype.return_type, llvm.VoidType):
        builder.ret_void()
    else:
        builder.ret(value)


def _finish(builder: llvm.IRBuilder, result: Type | None) -> Callable[[Value | None], None]:
    def finish(value: Value | None) -> None:
        if result is None:
            builder.ret_void()
            return
        builder.ret(number(0) if value is None else as_word(builder, value, result))

    return finish


def as_word(builder: llvm.IRBuilder, value: Value, kind: Type) -> Value:
    """Return a value as a word: extended by its own signedness, floats as their bits."""
    if isinstance(kind, FloatType):
        value = builder.bitcast(value, llvm.IntType(kind.bits))
    if value.type.width == 64:
        return value
    signed = isinstance(kind, IntegerType) and kind.signed
    return (builder.sext if signed else builder.zext)(value, I64)


def uses_floats(handler: ir.Function) -> bool:
    """Return whether a handler computes with floats."""
    return any(isinstance(expr.type, FloatType) for expr in walk.expressions(handler.body)) or any(
        isinstance(each, ir.Read) and isinstance(each.target.type, FloatType) for each in walk.statements(handler.body)
    )


def _object(text: str, *, vectors: bool) -> bytes:
    features = _WITH_FLOATS if vectors else _WITHOUT_FLOATS
    text = text.replace(" noredzone", f" noredzone {_ATTRIBUTES} {features}")
    try:
        return toolchain.object_code(text, TRIPLE, "x86-64")
    except RuntimeError as error:
        raise InternalError(f"LLVM: {error}") from None
