"""The table of docs/handlers.md in LLVM's language: operations without operands for which they are undefined."""

from llvmlite import ir as llvm

from anyprobe.handlers.llvm.machine import Value
from anyprobe.handlers.types.annotations import BoolType, FloatType, IntegerType, Type

I1, I8, I64 = llvm.IntType(1), llvm.IntType(8), llvm.IntType(64)


def number(value: int) -> Value:
    """Return a 64-bit constant."""
    return llvm.Constant(I64, value & (1 << 64) - 1)


def unary(builder: llvm.IRBuilder, symbol: str, kind: Type, operand: Value) -> Value:
    """Emit ``-``, ``~``, ``not`` or the absolute value of a float."""
    if isinstance(kind, FloatType):
        if symbol == "-":
            return builder.fneg(operand)
        return builder.call(builder.module.declare_intrinsic("llvm.fabs", [operand.type]), [operand])
    return builder.neg(operand) if symbol == "-" else builder.not_(operand)


def floating(builder: llvm.IRBuilder, symbol: str, left: Value, right: Value) -> Value:
    """Emit an operation on floats."""
    emit = {"+": builder.fadd, "-": builder.fsub, "*": builder.fmul, "/": builder.fdiv}
    return emit[symbol](left, right)


def binary(builder: llvm.IRBuilder, symbol: str, kind: Type, left: Value, right: Value, constant: int | None) -> Value:
    """Emit an operation on whole numbers or booleans; ``constant`` is the right operand if it is one."""
    simple = {
        "+": builder.add, "-": builder.sub, "*": builder.mul, "&": builder.and_, "|": builder.or_, "^": builder.xor,
    }  # fmt: skip
    if symbol in simple:
        return simple[symbol](left, right)
    signed = isinstance(kind, IntegerType) and kind.signed
    if symbol in {"<<", ">>"}:
        return _shift(builder, symbol, left, right, signed=signed)
    if constant is not None and constant > 0 and constant & (constant - 1) == 0:
        if symbol == "%":
            return builder.and_(left, number(constant - 1))
        return (builder.ashr if signed else builder.lshr)(left, number(constant.bit_length() - 1))
    return _division(builder, symbol, left, right, signed=signed)


def _shift(builder: llvm.IRBuilder, symbol: str, left: Value, count: Value, *, signed: bool) -> Value:
    """Emit a shift; counts of 64 and more, which processors take modulo 64, shift everything out."""
    inside = builder.icmp_unsigned("<", count, number(64))
    if symbol == ">>" and signed:
        return builder.ashr(left, builder.select(inside, count, number(63)))
    limited = builder.select(inside, count, number(0))
    shifted = builder.shl(left, limited) if symbol == "<<" else builder.lshr(left, limited)
    return builder.select(inside, shifted, number(0))


def _division(builder: llvm.IRBuilder, symbol: str, left: Value, right: Value, *, signed: bool) -> Value:
    """Emit ``//`` and ``%``, rounded down.

    Signed ones are made of unsigned ones: these never trap (``idiv`` does for the smallest number by -1), and BPF has
    no others before its fourth version.
    """
    zero, by_zero = number(0), builder.icmp_unsigned("==", right, number(0))
    if not signed:
        divisor = _hidden(builder, builder.select(by_zero, number(1), right))
        result = builder.udiv(left, divisor) if symbol == "//" else builder.urem(left, divisor)
        return builder.select(by_zero, zero, result)
    negative = [builder.icmp_signed("<", each, zero) for each in (left, right)]
    sizes = [builder.select(sign, builder.neg(each), each) for sign, each in zip(negative, (left, right), strict=True)]
    divisor = _hidden(builder, builder.select(by_zero, number(1), sizes[1]))
    quotient = builder.udiv(sizes[0], divisor)
    rest = builder.sub(sizes[0], builder.mul(quotient, divisor))
    inexact = builder.zext(builder.icmp_unsigned("!=", rest, zero), I64)
    opposite = builder.xor(*negative)
    floor = builder.select(opposite, builder.neg(builder.add(quotient, inexact)), quotient)
    result = floor if symbol == "//" else builder.sub(left, builder.mul(right, floor))
    return builder.select(by_zero, zero, result)


def _hidden(builder: llvm.IRBuilder, divisor: Value) -> Value:
    """Keep from LLVM what a divisor is made of.

    By one that it knows to be a power of two it divides by counting zeros, for which BPF has no instruction and LLVM
    a table in memory, which handlers have not.
    """
    return builder.asm(llvm.FunctionType(I64, [I64]), "", "=r,0", [divisor], side_effect=False)


def compare(builder: llvm.IRBuilder, symbol: str, kind: Type, left: Value, right: Value) -> Value:
    """Emit a comparison; with what is no number, only ``!=`` is true."""
    if isinstance(kind, FloatType):
        return (
            builder.fcmp_unordered("!=", left, right) if symbol == "!=" else builder.fcmp_ordered(symbol, left, right)
        )
    signed = isinstance(kind, IntegerType) and kind.signed
    return (builder.icmp_signed if signed else builder.icmp_unsigned)(symbol, left, right)


def convert(builder: llvm.IRBuilder, value: Value, source: Type, kind: Type, target: llvm.Type) -> Value:
    """Emit a conversion."""
    signed = isinstance(source, IntegerType) and source.signed
    if isinstance(source, FloatType):
        if isinstance(kind, FloatType):
            return builder.fpext(value, target) if kind.bits > source.bits else builder.fptrunc(value, target)
        return _saturated(builder, value, source, kind, target)
    if isinstance(kind, FloatType):
        return (builder.sitofp if signed else builder.uitofp)(value, target)
    if isinstance(source, BoolType) or target.width > value.type.width:
        return (builder.sext if signed else builder.zext)(value, target)
    return builder.trunc(value, target) if target.width < value.type.width else value


def _saturated(builder: llvm.IRBuilder, value: Value, source: FloatType, kind: Type, target: llvm.Type) -> Value:
    """Emit a float without its fraction; what does not fit becomes the nearest that does, no number becomes 0."""
    signed = isinstance(kind, IntegerType) and kind.signed
    name = f"llvm.fpto{'s' if signed else 'u'}i.sat.i{target.width}.f{source.bits}"
    function = builder.module.globals.get(name)
    if function is None:
        function = llvm.Function(builder.module, llvm.FunctionType(target, [value.type]), name)
    return builder.call(function, [value])
