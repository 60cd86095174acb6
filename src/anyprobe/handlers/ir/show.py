"""The intermediate language as text, for people and tests; of its statements, compiled code is kept under the text."""

from collections.abc import Iterable, Iterator

from anyprobe.handlers.ir import nodes as ir


def expression(expr: ir.Expr) -> str:
    """Return an expression as text."""
    match expr:
        case ir.Const(value, kind):
            return f"{value!r}:{kind}"
        case ir.Local(name, _):
            return name
        case ir.Word(index):
            return f"word[{index}]"
        case ir.Unary(symbol, operand):
            return f"({symbol} {expression(operand)})"
        case ir.Binary(symbol, left, right):
            return f"({expression(left)} {symbol} {expression(right)})"
        case ir.Compare(symbol, left, right):
            return f"({expression(left)} {symbol} {expression(right)})"
        case ir.Convert(operand, kind):
            return f"{kind}({expression(operand)})"
        case ir.Bits(operand, kind):
            return f"bits {kind}({expression(operand)})"
        case ir.Select(condition, then, orelse):
            return f"({expression(then)} if {expression(condition)} else {expression(orelse)})"


def function(handler: ir.Function) -> str:
    """Return a handler as text."""
    lines = [f"handler {handler.name} -> {handler.result or 'nothing'}"]
    for index, word in enumerate(handler.inputs):
        position = f" {word.index}" if word.kind in {"parameter", "storage"} else ""
        where = f" in {word.place}" if word.place else ""
        written = " written" if word.written else ""
        lines.append(f"  word[{index}] = {word.kind.value}{position} {word.name}{where}{written}")
    lines += [f"  storage[{index}] = {each.signature}" for index, each in enumerate(handler.storages)]
    return "\n".join([*(line.rstrip() for line in lines), *body(handler.body, 1)]) + "\n"


def body(statements: ir.Body, depth: int = 0) -> Iterator[str]:
    """Yield the lines of some statements."""
    margin = "  " * depth
    for each in statements:
        match each:
            case ir.If(condition, then, orelse):
                yield f"{margin}if {expression(condition)}:"
                yield from body(then, depth + 1)
                if orelse:
                    yield f"{margin}else:"
                    yield from body(orelse, depth + 1)
            case ir.Block(label, inner):
                yield f"{margin}block {label}:"
                yield from body(inner, depth + 1)
            case ir.Loop(label, bound, inner):
                yield f"{margin}loop {label}, at most {bound}:"
                yield from body(inner, depth + 1)
            case _:
                yield margin + statement(each)


def statement(each: ir.Stmt) -> str:
    """Return a statement without parts as text."""
    match each:
        case ir.Assign(local, value):
            return f"{_declared(local)} = {expression(value)}"
        case ir.Leave(label):
            return f"leave {label}"
        case ir.Return(value):
            return f"return {expression(value)}"
        case ir.CountMiss(miss):
            return f"miss {miss.value}"
        case ir.Mark(_, line, column, _):
            return f"line {line}:{column}"
        case ir.Read(present, target, address):
            return f"{present.name}, {_declared(target)} = read {expression(address)}"
        case ir.ReadBytes(present, length, buffer, address, size, text):
            what = "text" if text else "bytes"
            return (
                f"{present.name}, {length.name}, {buffer.name}[{buffer.size}] = "
                f"{what} {expression(address)}, {expression(size)}"
            )
        case ir.ReadComm(present, length, buffer):
            return f"{present.name}, {length.name}, {buffer.name}[{buffer.size}] = comm"
        case ir.ReadCpu(present, target):
            return f"{present.name}, {_declared(target)} = time on processors"
        case ir.FillBuffer(buffer, words):
            return f"{buffer.name}[{buffer.size}] = {_listed(expression(word) for word in words)}"
        case ir.BufferByte(target, buffer, index):
            return f"{_declared(target)} = {buffer.name}[{expression(index)} % {buffer.size}]"
        case ir.BufferWord(target, buffer, number):
            return f"{_declared(target)} = {buffer.name}[{buffer.size}] word {number}"
        case ir.BufferEquals(target, buffer, words):
            return f"{target.name} = {buffer.name}[{buffer.size}] == {_listed(hex(word) for word in words)}"
        case ir.Write(address, value):
            return f"write {expression(address)}, {value.type} {expression(value)}"
        case ir.SetWord(index, value):
            return f"word[{index}] = {expression(value)}"
        case ir.LoadInstance(present, target, instance, offset):
            return f"{present.name}, {target.name} = instance word[{instance}] + {offset}"
        case ir.StoreInstance(instance, offset, value):
            return f"instance word[{instance}] + {offset} = {expression(value)}"
        case ir.Update(storage, operation, values, key, present, target):
            results = ", ".join(local.name for local in (present, target) if local is not None)
            keys = f", key {_listed(_part(part) for part in key)}" if key else ""
            operands = _listed(f"{value.type} {expression(value)}" for value in values)
            return f"{results + ' = ' if results else ''}storage[{storage}].{operation}{operands}{keys}"
        case ir.If() | ir.Block() | ir.Loop():
            return next(body((each,)))


def _declared(local: ir.Local) -> str:
    return f"{local.name}: {local.type}"


def _part(part: ir.Expr | ir.Buffer) -> str:
    return f"{part.name}[{part.size}]" if isinstance(part, ir.Buffer) else expression(part)


def _listed(parts: Iterable[str]) -> str:
    return f"({', '.join(parts)})"
