"""Generated handlers give the same results by CPython under the documented rules, on x86-64, and in the kernel.

``ANYPROBE_EXAMPLES`` is how many each test generates: 1000 in ``make torture``; 5000 take half an hour.
"""

import ctypes
import mmap
import os

import pytest
from hypothesis import HealthCheck, given, settings

from anyprobe.data.aggregates.aggregations import Count, Hist, Sum
from anyprobe.data.readers.tables import TableView
from anyprobe.handlers.x86.native import compile_native
from support import bpf_running, generating, running
from support.differential import (
    KERNEL_COLLECTING,
    OwnMemory,
    agree,
    collect_in_the_kernel,
    compare,
    compute_in_the_kernel,
    direct,
    lowered,
    with_memory,
)
from support.reference.interpreter import Interpreter

EXAMPLES = int(os.environ.get("ANYPROBE_EXAMPLES", "50"))
REFUSED = bpf_running.refused_because()
SETTINGS = settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def native(function):
    runner = running.Runner(compile_native(function))
    return lambda words: (runner.run(*words), runner.misses)


@SETTINGS
@given(generating.handlers())
def test_x86_64_computes_like_cpython(handler):
    found, function = lowered(handler)
    compare(handler, handler.kinds, handler.rows, native(function), function, found)


COLLECTING = {"calls": Count("calls"), "sums": Sum("sums", by=("a", "b", "c")), "values": Hist("values")}


@SETTINGS
@given(generating.handlers(**COLLECTING))
def test_aggregations_agree_with_a_record_of_all_updates(handler):
    found, function = lowered(handler)
    regions = {index: mmap.mmap(-1, each.layout.size) for index, each in enumerate(function.storages)}
    places = {index: ctypes.addressof(ctypes.c_char.from_buffer(region)) for index, region in regions.items()}
    runner = running.Runner(compile_native(function), places)
    interpreter = Interpreter(handler.function, found.notes, OwnMemory())
    for row in handler.rows:
        runner.run(*(running.word(value, kind) for value, kind in zip(row, handler.kinds, strict=True)))
        interpreter.run(*row)
    for index, storage in enumerate(function.storages):
        cells = TableView(memoryview(regions[index]), storage.layout).result().entries
        agree(storage.layout, interpreter.record.updates, cells, handler.text)


@SETTINGS
@given(generating.handlers(memory=True))
def test_x86_64_reads_memory_like_cpython(handler):
    found, function = lowered(handler)
    kinds, rows = with_memory(handler)
    compare(handler, kinds, rows, native(function), function, found)


@pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))
@SETTINGS
@given(generating.handlers(floats=False))
def test_the_kernel_computes_like_cpython(handler):
    found, function = lowered(handler)
    with bpf_running.Runner(function) as runner:
        compare(handler, handler.kinds, handler.rows, runner.run, function, found)


@pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))
@SETTINGS
@given(generating.handlers(floats=False, memory=True))
def test_the_kernel_reads_memory_like_cpython(handler):
    compute_in_the_kernel(handler)


@pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))
@pytest.mark.parametrize("collecting", KERNEL_COLLECTING, ids=lambda each: each["sums"].kind)
def test_aggregations_of_the_kernel_agree_with_a_record_of_all_updates(collecting):
    @settings(SETTINGS, max_examples=max(EXAMPLES // 4, 1))
    @given(generating.handlers(floats=False, **collecting))
    def run(handler):
        collect_in_the_kernel(handler)

    run()


@pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))
@SETTINGS
@given(generating.handlers(floats=False, memory=True))
def test_simple_handlers_without_llvm_compute_like_cpython(handler):
    compute_in_the_kernel(handler, direct)


@pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))
@pytest.mark.parametrize("collecting", KERNEL_COLLECTING[::3], ids=["sum-hist", "min-max"])
def test_simple_handlers_without_llvm_collect_like_a_recomputation(collecting):
    @SETTINGS
    @given(generating.handlers(floats=False, **collecting))
    def run(handler):
        collect_in_the_kernel(handler, direct)

    run()
