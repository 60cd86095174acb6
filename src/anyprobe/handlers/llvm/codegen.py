"""From the intermediate language to LLVM's: everything that is the same on both machines."""

from collections.abc import Callable

from llvmlite import ir as llvm

from anyprobe.core.code import Miss
from anyprobe.core.errors import HandlerError
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.llvm.arithmetic import I1, I8, I64, binary, compare, convert, floating, number, unary
from anyprobe.handlers.llvm.machine import Machine, Value
from anyprobe.handlers.types.annotations import BoolType, FloatType, IntegerType, Type


def machine_type(kind: Type) -> llvm.Type:
    """Return LLVM's type for values of a type; addresses of the program are numbers."""
    match kind:
        case IntegerType(bits, _):
            return llvm.IntType(bits)
        case FloatType(bits):
            return llvm.FloatType() if bits == 32 else llvm.DoubleType()
        case BoolType():
            return I1
        case _:
            return I64


class Lowering:
    """Generates the code of one handler into a function that has been begun."""

    def __init__(self, builder: llvm.IRBuilder, machine: Machine) -> None:
        """Append with ``builder``, which stands at the end of the entry block."""
        self._builder, self._machine = builder, machine
        self._locals: dict[str, Value] = {}
        self._buffers: dict[str, Value] = {}
        self._after: dict[str, llvm.Block] = {}

    def run(self, handler: ir.Function, finish: Callable[[Value | None], None]) -> None:
        """Generate the handler; ``finish`` emits the return."""
        self._finish = finish
        self._body(handler.body)
        if not self._builder.block.is_terminated:
            finish(None)

    # -- storage on the stack

    def _local(self, local: ir.Local) -> Value:
        """Return the place of a local variable; LLVM makes registers of them."""
        if local.name not in self._locals:
            kind = machine_type(local.type)
            with self._builder.goto_entry_block():
                place = self._builder.alloca(kind, name=local.name)
                self._builder.store(llvm.Constant(kind, 0), place)
            self._locals[local.name] = place
        return self._locals[local.name]

    def _buffer(self, buffer: ir.Buffer) -> Value:
        if buffer.name not in self._buffers:
            with self._builder.goto_entry_block():
                words = self._builder.alloca(llvm.ArrayType(I64, buffer.size // ir.WORD + 1), name=buffer.name)
                self._buffers[buffer.name] = self._builder.bitcast(words, I64.as_pointer())
        return self._buffers[buffer.name]

    def _buffer_word(self, buffer: ir.Buffer, index: int) -> Value:
        return self._builder.gep(self._buffer(buffer), [number(index)])

    # -- statements

    def _body(self, statements: ir.Body) -> None:
        for each in statements:
            if self._builder.block.is_terminated:
                return
            self._statement(each)

    def _statement(self, each: ir.Stmt) -> None:
        builder = self._builder
        match each:
            case ir.Assign(local, value):
                builder.store(self.value(value), self._local(local))
            case ir.If(condition, then, orelse):
                self._if(condition, then, orelse)
            case ir.Block(label, inner):
                after = self._after[label] = builder.append_basic_block(label)
                self._body(inner)
                self._go(after)
                builder.position_at_end(after)
            case ir.Loop(label, _, inner):
                after = self._after[label] = builder.append_basic_block(label)
                top = builder.append_basic_block("loop")
                builder.branch(top)
                builder.position_at_end(top)
                self._body(inner)
                self._go(top)
                builder.position_at_end(after)
            case ir.Leave(label):
                builder.branch(self._after[label])
            case ir.Return(value):
                self._finish(self.value(value))
            case _:
                self._effect(each)

    def _go(self, block: llvm.Block) -> None:
        if not self._builder.block.is_terminated:
            self._builder.branch(block)

    def _if(self, condition: ir.Expr, then: ir.Body, orelse: ir.Body) -> None:
        builder = self._builder
        yes, no, after = (builder.append_basic_block(name) for name in ("then", "else", "after"))
        builder.cbranch(self.value(condition), yes, no)
        for block, body in ((yes, then), (no, orelse)):
            builder.position_at_end(block)
            self._body(body)
            self._go(after)
        builder.position_at_end(after)

    def _effect(self, each: ir.Stmt) -> None:
        builder, machine = self._builder, self._machine
        match each:
            case ir.Mark():
                machine.mark(each)
            case ir.CountMiss(miss):
                machine.count_miss(miss)
            case ir.Read(present, target, address):
                place = self._local(target)
                done = machine.read(self.value(address), builder.ptrtoint(place, I64), target.type.size)
                self._present(present, done)
            case ir.ReadBytes():
                self._read_bytes(each)
            case ir.ReadComm(present, length, buffer):
                for index in range(buffer.size // ir.WORD + 1):
                    builder.store(number(0), self._buffer_word(buffer, index))
                done, found = machine.read_comm(builder.ptrtoint(self._buffer(buffer), I64))
                builder.store(builder.select(done, found, number(0)), self._local(length))
                self._present(present, done)
            case ir.ReadCpu(present, target):
                done, found = machine.read_cpu()
                builder.store(found, self._local(target))
                self._present(present, done)
            case ir.FillBuffer(buffer, words):
                for index in range(buffer.size // ir.WORD + 1):
                    word = self.value(words[index]) if index < len(words) else number(0)
                    builder.store(word, self._buffer_word(buffer, index))
            case ir.BufferByte(target, buffer, index):
                at = builder.and_(self.value(index), number(buffer.size - 1))
                byte = builder.load(builder.gep(builder.bitcast(self._buffer(buffer), I8.as_pointer()), [at]))
                builder.store(builder.zext(byte, I64), self._local(target))
            case ir.BufferWord(target, buffer, index):
                builder.store(builder.load(self._buffer_word(buffer, index)), self._local(target))
            case ir.BufferEquals(target, buffer, words):
                self._buffer_equals(target, buffer, words)
            case ir.Write(address, value):
                with builder.goto_entry_block():
                    source = builder.alloca(machine_type(value.type))
                builder.store(self.value(value), source)
                done = machine.write(self.value(address), builder.ptrtoint(source, I64), value.type.size)
                self._count_unless(done)
            case ir.SetWord(index, value):
                machine.set_word(index, self.value(value))
            case ir.LoadInstance() | ir.StoreInstance():
                self._instance(each)
            case ir.Update(storage, _, values, key):
                found = machine.update(storage, each, [self.value(value) for value in values], self._key(key))
                if found is not None and each.present is not None and each.target is not None:
                    builder.store(found[0], self._local(each.present))
                    builder.store(found[1], self._local(each.target))
            case _:
                raise AssertionError(each)

    def _count_unless(self, done: Value) -> None:
        with self._builder.if_then(self._builder.not_(done), likely=False):
            self._machine.count_miss(Miss.FAULT)

    def _present(self, present: ir.Local, done: Value) -> None:
        self._builder.store(done, self._local(present))
        self._count_unless(done)

    def _read_bytes(self, each: ir.ReadBytes) -> None:
        builder = self._builder
        for index in range(each.buffer.size // ir.WORD + 1):
            builder.store(number(0), self._buffer_word(each.buffer, index))
        size, limit = self.value(each.size), number(each.buffer.size)
        size = builder.select(builder.icmp_unsigned("<", size, limit), size, limit)
        target = builder.ptrtoint(self._buffer(each.buffer), I64)
        address = self.value(each.address)
        done, length = self._machine.read_bytes(address, target, size, each.buffer.size, text=each.text)
        builder.store(builder.select(done, length, number(0)), self._local(each.length))
        self._present(each.present, done)

    def _buffer_equals(self, target: ir.Local, buffer: ir.Buffer, words: tuple[int, ...]) -> None:
        builder = self._builder
        total: Value = number(0)
        for index, word in enumerate(words):
            found = builder.load(self._buffer_word(buffer, index))
            total = builder.or_(total, builder.xor(found, number(word)))
        builder.store(builder.icmp_unsigned("==", total, number(0)), self._local(target))

    def _instance(self, each: ir.LoadInstance | ir.StoreInstance) -> None:
        builder = self._builder
        value = self.value(each.value) if isinstance(each, ir.StoreInstance) else None
        base = self._machine.instance(each.instance)
        there = builder.icmp_unsigned("!=", base, number(0))
        if isinstance(each, ir.LoadInstance):
            builder.store(there, self._local(each.present))
        with builder.if_then(there, likely=True):
            place = builder.inttoptr(builder.add(base, number(each.offset)), I64.as_pointer())
            if isinstance(each, ir.LoadInstance):
                builder.store(builder.load(place), self._local(each.target))
            else:
                builder.store(value, place)

    def _key(self, parts: tuple[ir.Expr | ir.Buffer, ...]) -> list[Value]:
        words: list[Value] = []
        for part in parts:
            if isinstance(part, ir.Buffer):
                places = [self._buffer_word(part, index) for index in range(part.size // ir.WORD)]
                words.append([self._builder.load(place) for place in places])
            else:
                words.append(self.value(part))
        return words

    # -- expressions

    def value(self, expr: ir.Expr) -> Value:
        """Generate an expression."""
        builder = self._builder
        if isinstance(expr.type, FloatType) and not self._machine.floats:
            raise HandlerError("there are no floats in the kernel", instead="whole numbers: x * 1000 // y")
        match expr:
            case ir.Const(value, kind):
                return llvm.Constant(machine_type(kind), value)
            case ir.Local():
                place = self._local(expr)
                return builder.load(place)
            case ir.Word(index):
                return self._machine.word(index)
            case ir.Unary(symbol, operand):
                return unary(builder, symbol, operand.type, self.value(operand))
            case ir.Binary(symbol, left, right):
                if isinstance(expr.type, FloatType):
                    return floating(builder, symbol, self.value(left), self.value(right))
                constant = int(right.value) if isinstance(right, ir.Const) else None
                return binary(builder, symbol, expr.type, self.value(left), self.value(right), constant)
            case ir.Compare(symbol, left, right):
                return compare(builder, symbol, left.type, self.value(left), self.value(right))
            case ir.Convert(operand, kind):
                return convert(builder, self.value(operand), operand.type, kind, machine_type(kind))
            case ir.Bits(operand, kind):
                word = self.value(operand)
                if isinstance(operand.type, FloatType):
                    return builder.zext(builder.bitcast(word, llvm.IntType(operand.type.bits)), I64)
                if kind.bits == 32:
                    word = builder.trunc(word, llvm.IntType(32))
                return builder.bitcast(word, machine_type(kind))
            case ir.Select(condition, then, orelse):
                return builder.select(self.value(condition), self.value(then), self.value(orelse))
