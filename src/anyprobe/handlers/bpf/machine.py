"""The kernel's machine: from the intermediate language to instructions of BPF."""

from llvmlite import ir as llvm

from anyprobe.core.code import MISSES, BpfProgram, Input, InputKind, Miss, StorageReference
from anyprobe.core.errors import HandlerError, InternalError
from anyprobe.handlers.bpf import maps, rings, stacks, tables
from anyprobe.handlers.bpf.debug_lines import Debug, lines_of
from anyprobe.handlers.bpf.helper_functions import POINTER, call
from anyprobe.handlers.bpf.instances import Instance
from anyprobe.handlers.bpf.layouts import (
    CALLS_REGION_BYTES,
    MAP_BYTES,
    MISSES_REFERENCE,
    OPEN,
    SAVED_ARGUMENTS,
    Passed,
    RecordPlace,
    argument_of,
    region_bytes,
)
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.llvm import toolchain
from anyprobe.handlers.llvm.arithmetic import I8, I64, number
from anyprobe.handlers.llvm.codegen import Lowering
from anyprobe.handlers.llvm.machine import Pair, Value, flat
from anyprobe.handlers.llvm.object_file import ObjectFile
from anyprobe.handlers.passes import bounds
from anyprobe.handlers.types.storages import CallData, MapTable, Ring, Stacks, Table
from anyprobe.handlers.x86.native import as_word

ENTRY = "handler"
TRIPLE, PROCESSOR = "bpfel", "v3"
PROBE_READ_USER, PROBE_READ_USER_STR, PROBE_WRITE_USER = 112, 114, 36
_PROBE_READ_KERNEL, _PROBE_READ_KERNEL_STR = 113, 115
CURRENT_COMM, COMM_BYTES = 16, 16
_ASKED_FOR = {"now": 5, "cpu": 8, "tid": 14, "pid": 14, "uid": 15, "gid": 15, "cgroup": 80}
"""What a program is not passed and the kernel tells."""
_UPPER, _LOWER = frozenset({"pid", "gid"}), frozenset({"tid", "uid"})
"""What is one half of a word that the kernel tells."""
_FUNCTION = 173
"""Tells the address of the function at which a program is, by the program's context."""
_AS_IT_IS = llvm.InlineAsm(llvm.FunctionType(I64, [I64]), "", "=r,0")
"""Nothing, of which LLVM does not know that."""
_ADDRESS = 1
"""``R_BPF_64_64``: the address of a symbol in a 16-byte instruction."""


class BpfMachine:
    """BPF: inputs are words of the program's context, memory is read by the kernel's functions."""

    floats = False

    def __init__(
        self, builder: llvm.IRBuilder, words: Value, handler: ir.Function, passed: Passed | None = None
    ) -> None:
        """Generate with ``builder``; ``words`` points at the context: the inputs, or what is ``passed``."""
        self._builder, self._words, self._storages = builder, words, handler.storages
        self._inputs, self._passed = handler.inputs, passed
        self._instance: Instance | None = None
        self._debug: Debug | None = None

    def word(self, index: int) -> Value:
        """Return a word of the context: what is passed in the kernel, or what the kernel tells."""
        if self._passed is not None:
            return self._told(self._inputs[index], self._passed)
        return self._context_word(index)

    def _context_word(self, index: int) -> Value:
        """Load a word of the context, by its offset in the instruction: the verifier permits no other way.

        Without the asm in between LLVM makes one load of two in the arms of a branch, and an offset that depends.
        """
        builder = self._builder
        return builder.call(_AS_IT_IS, [builder.load(builder.gep(self._words, [number(index)]))])

    def _told(self, found: Input, passed: Passed) -> Value:
        builder = self._builder
        place = RecordPlace.of(found.place)
        if place is not None:
            return self._field(place)
        argument = argument_of(found.place)
        if argument is not None and passed.saved is not None:
            return self._saved(passed.saved, SAVED_ARGUMENTS[argument])
        at = passed.word(found)
        if at is not None:
            word = self._context_word(at)
            if found.name == "ip":  # a kprobe sees the registers as after its breakpoint
                return builder.sub(word, number(1))
            return self._plain(word) if at in passed.pointers else word
        if passed.at_function and found.name in {"ip", "func"}:
            return call(builder, _FUNCTION, [self._words])
        if found.name not in _ASKED_FOR:
            name = found.name if found.kind is not InputKind.PARAMETER else f"parameter {found.index + 1}"
            raise HandlerError(f"there is no {name} here in the kernel", instead="ctx.tid, ctx.pid, ctx.now, ctx.cpu")
        word = call(builder, _ASKED_FOR[found.name], [])
        if found.name in _LOWER:
            return builder.and_(word, number((1 << 32) - 1))
        return builder.lshr(word, number(32)) if found.name in _UPPER else word

    def _field(self, place: RecordPlace) -> Value:
        """Return a field of a tracepoint's record, or the address of one that is an array."""
        builder = self._builder
        if place.size:
            return self._loaded(place.offset, place.size, signed=place.signed)
        record = self._plain(builder.ptrtoint(self._words, I64))
        if not place.dynamic:
            return builder.add(record, number(place.offset))
        offset = builder.and_(self._loaded(place.offset, 4, signed=False), number((1 << 16) - 1))
        return builder.add(record, offset)

    def _loaded(self, offset: int, size: int, *, signed: bool) -> Value:
        """Load a number of some bytes from the context, by one instruction."""
        builder, kind = self._builder, llvm.IntType(8 * size)
        raw = builder.bitcast(self._words, I8.as_pointer())
        found = builder.load(builder.bitcast(builder.gep(raw, [number(offset)]), kind.as_pointer()))
        wide = found if size == ir.WORD else builder.sext(found, I64) if signed else builder.zext(found, I64)
        return builder.call(_AS_IT_IS, [wide])

    def _saved(self, word: int, offset: int) -> Value:
        """Return one of the registers that a system call has saved."""
        builder = self._builder
        with builder.goto_entry_block():
            place = builder.alloca(I64)
        builder.store(number(0), place)
        address = builder.add(self._plain(self._context_word(word)), number(offset))
        target = builder.ptrtoint(place, I64)
        call(builder, _PROBE_READ_KERNEL, [self._pointer(target), number(ir.WORD), self._pointer(address)])
        return builder.load(place)

    def _plain(self, pointer: Value) -> Value:
        """Return a pointer as a number: what an addition to memory has left there is no pointer to the verifier."""
        builder = self._builder
        with builder.goto_entry_block():
            place = builder.alloca(I64)
        builder.store(number(0), place)
        builder.atomic_rmw("add", place, pointer, "monotonic")
        return builder.load(place)

    def set_word(self, index: int, value: Value) -> None:
        """Change a word of the context."""
        self._builder.store(value, self._builder.gep(self._words, [number(index)]))

    def _pointer(self, address: Value) -> Value:
        return self._builder.inttoptr(address, POINTER)

    def _read(self, address: Value, user: int, kernel: int, target: Value, size: Value) -> Value:
        """Read memory by one of two functions, by the half that the address is in; return what that returns."""
        builder = self._builder
        arguments = [self._pointer(target), size, self._pointer(address)]
        if self._passed is None or not self._passed.kernel_memory:
            return call(builder, user, arguments)
        results: list[tuple[Value, Value]] = []
        with builder.if_else(builder.icmp_signed("<", address, number(0))) as branches:
            for branch, function in zip(branches, (kernel, user), strict=True):
                with branch:
                    results.append((call(builder, function, arguments), builder.block))
        joined = builder.phi(I64)
        for value, block in results:
            joined.add_incoming(value, block)
        return joined

    def read(self, address: Value, target: Value, size: int) -> Value:
        """Read bytes by ``bpf_probe_read_user``, or ``bpf_probe_read_kernel``."""
        failed = self._read(address, PROBE_READ_USER, _PROBE_READ_KERNEL, target, number(size))
        return self._builder.icmp_unsigned("==", failed, number(0))

    def read_bytes(self, address: Value, target: Value, size: Value, limit: int, *, text: bool) -> tuple[Value, Value]:
        """Read bytes, or a text by ``bpf_probe_read_user_str`` or the kernel's, which count and write the NUL."""
        del limit
        builder = self._builder
        if not text:
            failed = self._read(address, PROBE_READ_USER, _PROBE_READ_KERNEL, target, size)
            return builder.icmp_unsigned("==", failed, number(0)), size
        room = builder.add(size, number(1))
        found = self._read(address, PROBE_READ_USER_STR, _PROBE_READ_KERNEL_STR, target, room)
        return builder.icmp_signed(">", found, number(0)), builder.sub(found, number(1))

    def read_comm(self, target: Value) -> tuple[Value, Value]:
        """Ask for the thread's name by ``bpf_get_current_comm``; its length is that up to the first zero."""
        builder = self._builder
        failed = call(self._builder, CURRENT_COMM, [self._pointer(target), number(COMM_BYTES)])
        length: Value = number(COMM_BYTES)
        for at in reversed(range(COMM_BYTES)):
            byte = builder.load(builder.inttoptr(builder.add(target, number(at)), I8.as_pointer()))
            length = builder.select(builder.icmp_unsigned("==", byte, I8(0)), number(at), length)
        return builder.icmp_unsigned("==", failed, number(0)), length

    def read_cpu(self) -> tuple[Value, Value]:
        """Refuse: handlers in the kernel have no such attribute, which the front end says."""
        raise InternalError("no time on processors in the kernel")

    def write(self, address: Value, source: Value, size: int) -> Value:
        """Write bytes by ``bpf_probe_write_user``."""
        failed = call(self._builder, PROBE_WRITE_USER, [self._pointer(address), self._pointer(source), number(size)])
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

    def mark(self, place: ir.Mark) -> None:
        """Give the code that follows a place."""
        if self._debug is None:
            self._debug = Debug(self._builder)
        self._debug.mark(place)

    @property
    def marks(self) -> list[ir.Mark]:
        """All places in the source, in the order of their numbers as lines, from 1 on."""
        return [] if self._debug is None else self._debug.marks

    def begin(self) -> None:
        """Find the call's data, if there is any for this handler."""
        place = next((index for index, each in enumerate(self._storages) if isinstance(each, CallData)), None)
        if place is None or self._passed is None:
            return
        builder, passed = self._builder, self._passed
        if passed.frame is None:
            frame = self._plain(builder.ptrtoint(self._words, I64))
        else:
            frame = self._context_word(passed.frame)
            frame = frame if passed.enters else builder.sub(frame, number(ir.WORD))
        region, table = self._symbol(f"storage.{place}", CALLS_REGION_BYTES // 8), self._symbol(f"table.{place}", 1)
        is_open = builder.load(builder.gep(region, [number(0), number(OPEN // 8)]))
        with builder.if_then(builder.icmp_unsigned("==", is_open, number(0)), likely=False):
            builder.ret(number(passed.result))
        self._instance = Instance(builder, region, table, frame, enters=passed.enters)

    def end(self) -> None:
        """Give the call's data back where the call ends."""
        if self._instance is not None and self._passed is not None and not self._passed.enters:
            self._instance.end()

    def instance(self, index: int) -> Value:  # noqa: ARG002 - the protocol's
        """Return the address of the call's data, 0 if there is none."""
        if self._instance is None:
            raise HandlerError("ctx.data is for both ends of a call", instead="session.call(…)")
        return self._instance.address()

    def update(self, storage: int, operation: ir.Update, values: list[Value], key: list[Value]) -> Pair | None:
        """Update an aggregation, or take a stack."""
        store = self._storages[storage]
        if isinstance(store, Stacks):
            if self._passed is None:
                raise HandlerError("the kernel takes stacks at tracepoints only")
            region, table = self._symbol(f"storage.{storage}", 1), self._symbol(f"table.{storage}", 1)
            return stacks.take(self._builder, store, self._words, region, table)
        if isinstance(store, MapTable):
            region, table = self._symbol(f"storage.{storage}", MAP_BYTES // 8), self._symbol(f"table.{storage}", 1)
            return self._with_map(operation.operation, region, table, flat(key), values)
        if isinstance(store, Ring):
            region, table = self._symbol(f"storage.{storage}", 1), self._symbol(f"table.{storage}", 1)
            rings.emit(self._builder, store.layout.record, region, table, key)
            return None
        assert isinstance(store, Table)
        region = self._symbol(f"storage.{storage}", region_bytes(store.layout) // ir.WORD)
        table = self._symbol(f"table.{storage}", 1) if key else None
        tables.add(self._builder, store.layout, region, table, values[0] if values else None, flat(key))
        return None

    def _with_map(self, name: str, region: Value, table: Value, key: list[Value], values: list[Value]) -> Pair | None:
        """Look up, set or delete the value of a key."""
        if name == "set":
            maps.put(self._builder, region, table, key, values[0])
            return None
        if name == "increase":
            raise HandlerError("a map in the kernel cannot be increased", instead="Count(by=(…,)), or get and set")
        return (maps.get if name == "get" else maps.delete)(self._builder, region, table, key)


def compile_bpf(handler: ir.Function, *, result_word: bool = False, passed: Passed | None = None) -> BpfProgram:
    """Compile a handler for the kernel; where it is attached to something, inputs are what is ``passed`` there.

    With ``result_word`` its result, of which the kernel hands out 32 bits only, is also stored after the inputs.
    """
    return _program(_compiled(handler, passed, result_word=result_word)[0], handler)


def compiled_places(handler: ir.Function, passed: Passed) -> tuple[tuple[int, ir.Mark], ...]:
    """Return where the code of each marked place in the source begins in a handler's program."""
    found, marks = _compiled(handler, passed, result_word=False)
    return tuple((at, marks[line - 1]) for at, line in lines_of(found) if 0 < line <= len(marks))


def _compiled(handler: ir.Function, passed: Passed | None, *, result_word: bool) -> tuple[ObjectFile, list[ir.Mark]]:
    module = llvm.Module(handler.name)
    module.triple = TRIPLE
    function = llvm.Function(module, llvm.FunctionType(I64, [POINTER]), ENTRY)
    function.attributes.add("nounwind")
    builder = llvm.IRBuilder(function.append_basic_block("entry"))
    start = function.append_basic_block("start")
    builder.branch(start)
    builder.position_at_end(start)
    machine = BpfMachine(builder, function.args[0], handler, passed)

    def finish(value: Value | None) -> None:
        word = number(0)
        if value is not None and handler.result is not None:
            word = as_word(builder, value, handler.result)
        machine.end()
        if result_word and handler.result is not None:
            machine.set_word(len(handler.inputs), word)
        builder.ret(word if passed is None else number(passed.result))

    machine.begin()
    Lowering(builder, machine).run(handler, finish)
    text = str(module).replace(" nounwind", ' nounwind "no-builtins" "no-jump-tables"="true"')
    try:
        content = toolchain.kernel_code(text, TRIPLE, PROCESSOR)
    except RuntimeError as error:
        raise InternalError(f"LLVM: {error}") from None
    return ObjectFile(content), machine.marks


def _program(found: ObjectFile, handler: ir.Function) -> BpfProgram:
    section = found.symbol(ENTRY).section
    references = []
    for each in found.relocations:
        if each.section != section:
            continue
        if each.kind != _ADDRESS or each.offset % 8:
            raise InternalError(f"generated code refers to {each.symbol.name} in a way that is not known")
        name = each.symbol.name
        part, _, index = name.partition(".")
        storage = MISSES_REFERENCE if part == "misses" else int(index)
        references.append(StorageReference(each.offset // 8, storage, part == "table"))
    code = found.sections[section].content
    return BpfProgram(code, handler.inputs, tuple(references), bounds.steps(handler))
