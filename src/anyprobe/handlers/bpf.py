"""The kernel's machine: from the intermediate language to instructions of BPF."""

from llvmlite import ir as llvm

from anyprobe.core.code import MISSES, BpfProgram, Miss, StorageReference
from anyprobe.core.errors import HandlerError, InternalError
from anyprobe.data.aggregations import COUNT, SUM
from anyprobe.data.tables import ROW_HEAD_BYTES
from anyprobe.handlers import ir, toolchain
from anyprobe.handlers.llvm import Lowering
from anyprobe.handlers.llvm_arithmetic import I8, I64, number
from anyprobe.handlers.machine import Pair, Value
from anyprobe.handlers.native import as_word
from anyprobe.handlers.objectfile import ObjectFile
from anyprobe.handlers.passes import bounds
from anyprobe.handlers.storages import Table

ENTRY = "handler"
TRIPLE, PROCESSOR = "bpfel", "v3"
MISSES_REFERENCE = -1
"""Stands for the counters of misses among the storages."""
PROBE_READ_USER, PROBE_READ_USER_STR, PROBE_WRITE_USER = 112, 114, 36
CURRENT_COMM, COMM_BYTES = 16, 16
_POINTER = I64.as_pointer()
_ADDRESS = 1
"""``R_BPF_64_64``: the address of a symbol in a 16-byte instruction."""


class BpfMachine:
    """BPF: inputs are words of the program's context, memory is read by the kernel's functions."""

    floats = False

    def __init__(self, builder: llvm.IRBuilder, words: Value, storages: tuple[ir.Storage, ...]) -> None:
        """Generate with ``builder``; ``words`` points at the context."""
        self._builder, self._words, self._storages = builder, words, storages

    def word(self, index: int) -> Value:
        """Return a word of the context."""
        return self._builder.load(self._builder.gep(self._words, [number(index)]))

    def set_word(self, index: int, value: Value) -> None:
        """Change a word of the context."""
        self._builder.store(value, self._builder.gep(self._words, [number(index)]))

    def _helper(self, name: int, arguments: list[Value]) -> Value:
        kind = llvm.FunctionType(I64, [each.type for each in arguments])
        return self._builder.call(self._builder.inttoptr(number(name), kind.as_pointer()), arguments)

    def _pointer(self, address: Value) -> Value:
        return self._builder.inttoptr(address, _POINTER)

    def read(self, address: Value, target: Value, size: int) -> Value:
        """Read bytes by ``bpf_probe_read_user``."""
        failed = self._helper(PROBE_READ_USER, [self._pointer(target), number(size), self._pointer(address)])
        return self._builder.icmp_unsigned("==", failed, number(0))

    def read_bytes(self, address: Value, target: Value, size: Value, limit: int, *, text: bool) -> tuple[Value, Value]:
        """Read bytes, or a text by ``bpf_probe_read_user_str``, which counts and writes the NUL."""
        del limit
        builder = self._builder
        places = self._pointer(target), self._pointer(address)
        if not text:
            failed = self._helper(PROBE_READ_USER, [places[0], size, places[1]])
            return builder.icmp_unsigned("==", failed, number(0)), size
        found = self._helper(PROBE_READ_USER_STR, [places[0], builder.add(size, number(1)), places[1]])
        return builder.icmp_signed(">", found, number(0)), builder.sub(found, number(1))

    def read_comm(self, target: Value) -> tuple[Value, Value]:
        """Ask for the thread's name by ``bpf_get_current_comm``; its length is that up to the first zero."""
        builder = self._builder
        failed = self._helper(CURRENT_COMM, [self._pointer(target), number(COMM_BYTES)])
        length: Value = number(COMM_BYTES)
        for at in reversed(range(COMM_BYTES)):
            byte = builder.load(builder.inttoptr(builder.add(target, number(at)), I8.as_pointer()))
            length = builder.select(builder.icmp_unsigned("==", byte, I8(0)), number(at), length)
        return builder.icmp_unsigned("==", failed, number(0)), length

    def write(self, address: Value, source: Value, size: int) -> Value:
        """Write bytes by ``bpf_probe_write_user``."""
        failed = self._helper(PROBE_WRITE_USER, [self._pointer(address), self._pointer(source), number(size)])
        return self._builder.icmp_unsigned("==", failed, number(0))

    def _symbol(self, name: str, words: int) -> Value:
        found = self._builder.module.globals.get(name)
        if found is None:
            found = llvm.GlobalVariable(self._builder.module, llvm.ArrayType(I64, words), name)
        return found

    def count_miss(self, miss: Miss) -> None:
        """Count what went wrong, in a map."""
        counters = self._symbol("misses", len(MISSES))
        place = self._builder.gep(counters, [number(0), number(MISSES.index(miss))])
        self._builder.atomic_rmw("add", place, number(1), "monotonic")

    def instance(self, index: int) -> Value:  # noqa: ARG002 - the protocol's
        """Refuse: the kernel keeps no data of a call yet."""
        raise HandlerError("ctx.data is not possible in the kernel yet", instead="a Map by ctx.tid")

    def update(self, storage: int, operation: ir.Update, values: list[Value], key: list[Value]) -> Pair | None:  # noqa: ARG002 - the protocol's
        """Update counts and sums in a map that has the layout of the table's shared row."""
        table = self._storages[storage]
        if not isinstance(table, Table):
            raise HandlerError("maps and records are not possible in the kernel yet", instead="Count, Sum")
        cell = table.layout.aggregation.cell
        if key or not set(cell.fields) <= {COUNT, SUM} or cell.buckets:
            kind = type(table.layout.aggregation).__name__
            raise HandlerError(
                f"a {kind} {'by key ' if key else ''}is not possible in the kernel yet", instead="Count, Sum"
            )
        symbol = self._symbol(f"storage.{storage}", table.layout.size // ir.WORD)
        for name in cell.fields:
            at = (table.layout.rows_offset + ROW_HEAD_BYTES + cell.offset(name)) // ir.WORD
            place = self._builder.gep(symbol, [number(0), number(at)])
            self._builder.atomic_rmw("add", place, number(1) if name == COUNT else values[0], "monotonic")
        return None


def compile_bpf(handler: ir.Function, *, result_word: bool = False) -> BpfProgram:
    """Compile a handler for the kernel.

    With ``result_word`` its result, of which the kernel hands out 32 bits only, is also stored behind the inputs.
    """
    module = llvm.Module(handler.name)
    module.triple = TRIPLE
    function = llvm.Function(module, llvm.FunctionType(I64, [_POINTER]), ENTRY)
    function.attributes.add("nounwind")
    builder = llvm.IRBuilder(function.append_basic_block("entry"))
    start = function.append_basic_block("start")
    builder.branch(start)
    builder.position_at_end(start)
    machine = BpfMachine(builder, function.args[0], handler.storages)

    def finish(value: Value | None) -> None:
        word = number(0)
        if value is not None and handler.result is not None:
            word = as_word(builder, value, handler.result)
        if result_word and handler.result is not None:
            machine.set_word(len(handler.inputs), word)
        builder.ret(word)

    Lowering(builder, machine).run(handler, finish)
    text = str(module).replace(" nounwind", ' nounwind "no-builtins" "no-jump-tables"="true"')
    try:
        content = toolchain.object_code(text, TRIPLE, PROCESSOR)
    except RuntimeError as error:
        raise InternalError(f"LLVM: {error}") from None
    return _program(ObjectFile(content), handler)


def _program(found: ObjectFile, handler: ir.Function) -> BpfProgram:
    section = found.symbol(ENTRY).section
    references = []
    for each in found.relocations:
        if each.section != section:
            continue
        if each.kind != _ADDRESS or each.offset % 8:
            raise InternalError(f"generated code refers to {each.symbol.name} in a way that is not known")
        name = each.symbol.name
        storage = MISSES_REFERENCE if name == "misses" else int(name.removeprefix("storage."))
        references.append(StorageReference(each.offset // 8, storage))
    code = found.sections[section].content
    return BpfProgram(code, handler.inputs, tuple(references), bounds.steps(handler))
