"""Update code compiled into this process, and the C library that calls it from threads and signals."""

import ctypes
import mmap
import subprocess
import tempfile
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

I64 = ir.IntType(64)
FEATURES = "+cx16,-sse,-sse2,-mmx,-avx,-x87"


def machine(features=FEATURES):
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(opt=2, features=features, reloc="pic", codemodel="small")


def text_of(function_name, arguments, build, result=I64):
    """Return the LLVM text of a function whose body ``build(builder, *arguments)`` emits and returns the value of."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(result, [I64] * arguments), function_name)
    for attribute in ("noredzone", "noimplicitfloat", "nounwind"):
        function.attributes.add(attribute)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    value = build(builder, *function.args)
    builder.ret(ir.Constant(I64, 0) if value is None else value)
    return str(module)


def optimised(text, target):
    module = llvm.parse_assembly(text)
    module.verify()
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(2))
    builder.getModulePassManager().run(module, builder)
    return module


class Compiled:
    """One function as machine code in this process."""

    def __init__(self, arguments, build, features=FEATURES):
        self.target = machine(features)
        module = optimised(text_of("update", arguments, build), self.target)
        self.assembly = self.target.emit_assembly(module)
        self._engine = llvm.create_mcjit_compiler(module, self.target)
        self._engine.finalize_object()
        self.address = self._engine.get_function_address("update")
        self.call = ctypes.CFUNCTYPE(ctypes.c_uint64, *[ctypes.c_uint64] * arguments)(self.address)


class Region:
    """Zeroed memory such as the target shares with us."""

    def __init__(self, size):
        self.map = mmap.mmap(-1, size)
        self.view = memoryview(self.map)
        self._pin = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(self._pin)


_library = None


def library():
    global _library  # noqa: PLW0603
    if _library is None:
        source = Path(__file__).with_name("hammer.c")
        place = Path(tempfile.mkdtemp(prefix="anyprobe-hammer-")) / "hammer.so"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-mno-red-zone", "-pthread", source, "-o", place], check=True)
        _library = ctypes.CDLL(str(place))
        place.unlink()
        place.parent.rmdir()
        _library.timed.restype = ctypes.c_double
    return _library


def hammer(code, base, *, threads=8, count=100_000, keys=0, numbered=True, signals=False):
    """Run the updates; return the steps that were made in all, those of signal handlers included."""
    nested = (ctypes.c_uint64 * 64)()
    numbers = [ctypes.c_uint64(value) for value in (code.address, base, threads, count, keys)]
    library().hammer(*numbers, ctypes.c_int(numbered), ctypes.c_int(signals), nested)
    steps = [np.arange(threads * count, dtype=np.uint64)]
    for thread in range(threads):
        first = (1 << 40) + (thread << 32)
        steps.append(np.arange(nested[thread], dtype=np.uint64) + np.uint64(first))
    return np.concatenate(steps)


def values_of(steps):
    """Return the values of steps, as hammer.c computes them."""
    mixed = mixed_of(steps)
    return mixed >> (steps % np.uint64(64))


def mixed_of(steps):
    z = (steps + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def nanoseconds(code, base, values, keys, count=2_000_000, thread=1):
    """Return CPU nanoseconds per update; the number of values is a power of two."""
    columns = [(ctypes.c_uint64 * len(column))(*column) for column in (values, keys)]
    numbers = [ctypes.c_uint64(value) for value in (code.address, base, thread, count)]
    return library().timed(*numbers, *columns, ctypes.c_uint64(len(values) - 1)) / count


class Call(ctypes.Structure):
    """A call of generated code with four arguments."""

    _fields_ = (("run", ctypes.c_void_p), ("arguments", ctypes.c_uint64 * 4))


def call_of(code, *arguments):
    padded = [argument & (1 << 64) - 1 for argument in arguments] + [0] * (4 - len(arguments))
    return Call(code.address, (ctypes.c_uint64 * 4)(*padded))


def interrupted(call, steps, others, *, leave=False):
    """Make a call, and others after some instructions of it; None if it is shorter, else all results."""
    results = (ctypes.c_uint64 * 17)()
    calls = (Call * max(len(others), 1))(*others)
    counts = ctypes.c_uint64(steps), calls, ctypes.c_uint64(len(others)), ctypes.c_int(leave)
    reached = library().interrupted(ctypes.byref(call), *counts, results)
    return list(results[: 1 + len(others)]) if reached else None
