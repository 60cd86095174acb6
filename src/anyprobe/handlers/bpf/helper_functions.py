"""What generated code asks the kernel for, and what it hides from LLVM so that the verifier sees it."""

from llvmlite import ir

from anyprobe.handlers.llvm.words import I64, Value, constant

POINTER = I64.as_pointer()


def call(builder: ir.IRBuilder, name: int, arguments: list[Value]) -> Value:
    """Call one of the kernel's functions by its number."""
    kind = ir.FunctionType(I64, [each.type for each in arguments])
    return builder.call(builder.inttoptr(constant(name), kind.as_pointer()), arguments)


def opaque(builder: ir.IRBuilder, value: Value) -> Value:
    """Return a value of which LLVM knows nothing any more."""
    nothing = ir.InlineAsm(ir.FunctionType(I64, [I64]), "", "=r,0", side_effect=True)
    return builder.call(nothing, [value])
