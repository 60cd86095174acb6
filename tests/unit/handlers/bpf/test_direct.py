"""Simple handlers in the kernel: what they compute, and that LLVM is not loaded for them."""

import ctypes
import subprocess
import sys

import pytest

from anyprobe import Count, Hist, Max, Min, Quantize, Sum, cstr, emit, i8, i32, i64, ptr, u16, u64
from anyprobe.data.aggregates.records import rows
from anyprobe.data.layouts import buckets
from anyprobe.handlers.bpf.direct import direct_program
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.types.storages import Ring
from support import bpf_running
from support.reference.bucket_index import log_linear_index

REFUSED = bpf_running.refused_because()
in_the_kernel = pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))
NUMBERS = [0, 1, -1, 63, 64, 65, 1000, -1000, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 44, (1 << 63) - 1, -(1 << 63)]


def run(handler, calls):
    """Run a handler without LLVM; return its results' words, and what it has collected."""
    function = intermediate(handler)
    program = direct_program(function, result_word=True)
    assert program is not None, "not simple"
    with bpf_running.Runner(function, program=program) as runner:
        results = [runner.call([each % (1 << 64) for each in call]) for call in calls]
        found = [runner.storages.result(at) for at, each in enumerate(function.storages) if not isinstance(each, Ring)]
        records = [runner.storages.maps.records(each) for each in function.storages if isinstance(each, Ring)]
        return results, found, records, runner.storages.misses()


@in_the_kernel
def test_a_histogram_by_key_has_the_right_buckets():
    sizes = Hist("sizes", by=("odd",))

    def collect(value: i64):
        sizes.add(value, key=(value & 1,))

    _, (result,), _, _ = run(collect, [(number,) for number in NUMBERS])
    for odd in (0, 1):
        wanted = {}
        for number in NUMBERS:
            if number & 1 == odd:
                bounds = buckets.log_linear_bounds(log_linear_index(number))
                wanted[bounds] = wanted.get(bounds, 0) + 1
        cell = result.entries[odd,]
        assert {(low, high): count for low, high, count in cell.buckets} == wanted
        mine = [number for number in NUMBERS if number & 1 == odd]
        assert (cell.min, cell.max, cell.count) == (min(mine), max(mine), len(mine))


@in_the_kernel
@pytest.mark.parametrize("kind", [i64, u64], ids=str)
def test_extremes_and_sums(kind):
    low, high, total, calls = Min("low"), Max("high"), Sum("total", by=("key",)), Count("calls")

    def collect(value: kind, key: u16):
        low.add(value)
        high.add(value)
        total.add(value, key=(key,))
        calls.add()

    _, found, _, _ = run(collect, [(number, at % 3) for at, number in enumerate(NUMBERS)])
    by_name = {each.name: each for each in found}
    values = [kind(number) for number in NUMBERS]
    assert by_name["low"].entries[()].min == min(values)
    assert by_name["high"].entries[()].max == max(values)
    assert by_name["calls"].entries[()].count == len(values)
    for key in range(3):
        assert kind(by_name["total"].entries[key,].sum) == kind(sum(values[key::3]))


@in_the_kernel
def test_conditions_and_arithmetic():
    def compute(a: i64, b: i32, c: i8):
        if a < b and c != 3:
            return (a + b * 3 ^ c) >> 2
        if a == b or c > 5:
            return a - 7 if b < 0 else ~a
        return -b

    calls = [(a, b, c) for a in (-5, 0, 3, 1 << 40) for b in (-9, 0, 3, 77) for c in (-128, 3, 7)]
    results, *_ = run(compute, calls)
    assert [i64(each) for each in results] == [compute(*call) for call in calls]


@in_the_kernel
def test_memory_is_read_and_what_cannot_be_is_counted():
    kept = Sum("kept")

    def collect(where: ptr[i32]):
        kept.add(where[1])

    numbers = (ctypes.c_int32 * 4)(7, -30, 5, 0)
    _, (result,), _, misses = run(collect, [(ctypes.addressof(numbers),), (8,), (ctypes.addressof(numbers) + 4,)])
    assert result.entries[()].sum == -25
    assert misses == {"fault": 1, "abandoned": 1, "division": 0}


@in_the_kernel
def test_records_of_numbers():
    def collect(a: i64, b: u16):
        emit("both", a=a, b=b, even=b % 2 == 0, small=i8(a))

    _, _, (found,), _ = run(collect, [(-300, 65535), (5, 4)])
    shown = [{name: each[name] for name in ("a", "b", "even", "small")} for each in rows(found)]
    assert shown == [
        {"a": -300, "b": 65535, "even": False, "small": i8(-300)},
        {"a": 5, "b": 4, "even": True, "small": 5},
    ]


@in_the_kernel
def test_texts_and_names_of_threads():
    names, mine, other = Count("names", by=("name", "size")), Count("mine"), Count("other", by=("comm",))

    def collect(where: ptr, kind: u64):
        text = cstr(where, 12)
        if text == "a red one":
            mine.add()
        else:
            names.add(key=(text, len(text)))

    texts = [ctypes.create_string_buffer(each) for each in (b"a red one", b"a green one, cut off", b"")]
    _, found, _, misses = run(collect, [*((ctypes.addressof(each), 0) for each in texts), (8, 0)])
    by_name = {each.name: each.entries for each in found}
    assert by_name["mine"][()].count == 1
    assert {key: cell.count for key, cell in by_name["names"].items()} == {("a green one,", 12): 1, ("", 0): 1}
    assert misses == {"fault": 1, "abandoned": 1, "division": 0}

    def named(ctx, value: u64):
        if ctx.comm == "another":
            other.add(key=(ctx.comm,))

    with open("/proc/self/comm") as file:
        before = file.read()
    try:
        seen = []
        for name in ("another", "another one"):
            with open("/proc/self/comm", "w") as file:
                file.write(name)
            _, (result,), _, _ = run(named, [(1,)])
            seen.append({key: cell.count for key, cell in result.entries.items()})
    finally:
        with open("/proc/self/comm", "w") as file:
            file.write(before)
    assert seen == [{("another",): 1}, {}]


def test_what_is_not_simple_is_left_to_llvm():
    sizes = Quantize("sizes")

    def with_powers(a: i64):
        sizes.add(a)

    def with_loop(a: i64):
        total = 0
        for each in range(10):
            total += each * a
        return total

    def with_quotient(a: i64, b: i64):
        return a // b

    assert [direct_program(intermediate(each)) for each in (with_powers, with_loop, with_quotient)] == [None] * 3


PLAIN = """
import sys
from anyprobe import Count, Hist, Sum, i64, u64
from anyprobe.handlers.bpf.layouts import Passed, AT_TRACEPOINT
from anyprobe.handlers.kernel_programs import kernel_program
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting

hits, sizes, sums = Count("hits", by=("comm",)), Hist("sizes", by=("pid",)), Sum("sums", by=("cpu",))

def handler(ctx, registers: u64, number: i64):
    if ctx.pid != 1 and number >= 0:
        hits.add(key=(ctx.comm,))
        sizes.add(number, key=(ctx.pid,))
        sums.add(number, key=(ctx.cpu,))

setting = Setting(kernel=frozenset({"pid", "comm", "cpu"}))
assert kernel_program(intermediate(handler, setting), AT_TRACEPOINT).code
print([name for name in sys.modules if "llvm" in name])
"""


def test_llvm_is_not_loaded_for_counts_sums_and_histograms_by_key(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=180, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
