"""Generated handlers by several ways: what CPython computes under the documented rules, and what compiled ones do."""

import ctypes
import math
from collections import Counter

from hypothesis import assume

from anyprobe.core.errors import HandlerError
from anyprobe.data.aggregates.aggregations import Count, Hist, LQuantize, Max, Min, Quantize, Stddev, Sum
from anyprobe.handlers.bpf.direct import direct_program
from anyprobe.handlers.compiler import PASSES
from anyprobe.handlers.frontend.lowering import lower
from anyprobe.handlers.ir import check
from anyprobe.handlers.types import annotations
from support import bpf_running, generating, running
from support.reference.bucket_index import linear_index, log_linear_index, power_index
from support.reference.interpreter import Interpreter

NUMBERS = (ctypes.c_int16 * 32)(*(value * 2731 % 65536 - 32768 for value in range(32)))


KERNEL_COLLECTING = (
    {"calls": Count("calls"), "sums": Sum("sums", by=("a", "b", "c")), "values": Hist("values")},
    {"calls": Count("calls"), "sums": Stddev("sums", by=("a", "b", "c")), "values": Quantize("values")},
    {"calls": Count("calls"), "sums": Quantize("sums", by=("a", "b", "c")), "values": LQuantize("values", -9, 90, 7)},
    {"calls": Count("calls"), "sums": Min("sums", by=("a", "b", "c")), "values": Max("values")},
)


class OwnMemory:
    """This process: what the routines of ``running`` can read."""

    def read(self, address, size):
        return ctypes.string_at(address, size) if 0x1000 <= address < 1 << 47 else None


def lowered(handler):
    """Return a generated handler after all passes, each checked; what is rightly refused is no example."""
    try:
        found = lower(handler.function)
    except HandlerError as error:
        # constants by constants, as in Python
        assume("division" not in str(error) and "modulo" not in str(error) and "shift" not in str(error))
        assume("does not fit" not in str(error))
        raise AssertionError(f"{error}\n{handler.text}") from error
    function = found.function
    check.check(function)
    for each in PASSES:
        function = each(function)
        check.check(function)
    return found, function


def expected(interpreter, row):
    counts = interpreter.record.counts
    for miss in counts:
        counts[miss] = 0
    result = interpreter.run(*row)
    return (0 if result is None else result.value), {miss.value: count for miss, count in counts.items()}


def same(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    return left == right


def compare(handler, kinds, rows, run, function, found):
    before = {"fault": 0, "abandoned": 0, "division": 0}
    interpreter = Interpreter(handler.function, found.notes, OwnMemory())
    for row in rows:
        wanted, counts = expected(interpreter, row)
        word, misses = run(tuple(running.word(value, kind) for value, kind in zip(row, kinds, strict=True)))
        new = {name: misses[name] - before[name] for name in misses}
        before = misses
        got = running.unword(word, function.result)
        assert same(wanted, got), f"{row}: {wanted} by CPython, {got}\n{handler.text}"
        assert new == counts, f"{row}\n{handler.text}"


def agree(layout, updates, cells, text):
    """Compare the cells of an aggregation with a recomputation from all its updates."""
    aggregation, wanted = layout.aggregation, {}
    for other, value, key in updates:
        if other is aggregation:
            wanted.setdefault(tuple(int(part) for part in key), []).append(int(value or 0))
    assert cells.keys() == wanted.keys(), text
    kind = annotations.i64 if layout.signed else annotations.u64
    for key, values in wanted.items():
        given, cell = [kind.wrap(value) for value in values], cells[key]
        assert cell.count == len(given), text
        if "sum" in aggregation.cell.fields:
            assert annotations.i64.wrap(cell.sum) == annotations.i64.wrap(sum(given)), text
        assert cell.min in (None, min(given)), text
        assert cell.max in (None, max(given)), text
        if cell.squares is not None:
            assert cell.squares == sum(value * value for value in given) % (1 << 128), text
        buckets = Counter(aggregation.bounds()[bucket_index(aggregation, value)] for value in given if cell.buckets)
        assert {(low, high): count for low, high, count in cell.buckets} == buckets, text


def bucket_index(aggregation, value):
    if isinstance(aggregation, LQuantize):
        return linear_index(value, aggregation.lower, aggregation.step, aggregation.levels)
    return power_index(value) if isinstance(aggregation, Quantize) else log_linear_index(value)


def with_memory(handler):
    kinds = (*handler.kinds, generating.ptr, generating.ptr)
    address = ctypes.addressof(NUMBERS)
    return kinds, [(*row, address, 8 if index % 2 else address) for index, row in enumerate(handler.rows)]


def direct(function):
    """Return the program that is made without LLVM; Hypothesis tries another handler where there is none."""
    program = direct_program(function, result_word=True)
    assume(program is not None)
    return program


def compute_in_the_kernel(handler, made=lambda _: None):
    """Compare what a handler computes in the kernel, also of memory; ``made`` returns its program, if not LLVM's."""
    found, function = lowered(handler)
    kinds, rows = with_memory(handler)
    with bpf_running.Runner(function, program=made(function)) as runner:
        compare(handler, kinds, rows, runner.run, function, found)


def collect_in_the_kernel(handler, made=lambda _: None):
    """Compare what a handler collects in the kernel."""
    found, function = lowered(handler)
    interpreter = Interpreter(handler.function, found.notes, OwnMemory())
    with bpf_running.Runner(function, program=made(function)) as runner:
        for row in handler.rows:
            runner.call([running.word(value, kind) for value, kind in zip(row, handler.kinds, strict=True)])
            interpreter.run(*row)
        for index, storage in enumerate(function.storages):
            result = runner.storages.result(index)
            agree(storage.layout, interpreter.record.updates, result.entries, handler.text)
            assert result.dropped == 0
