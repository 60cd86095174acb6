"""What handlers in the kernel collect: at a tracepoint from several threads, with more keys than fit, with stacks."""

import ctypes
import os
import subprocess
import threading
from collections import Counter
from contextlib import contextmanager

import pytest

from anyprobe import Count, Hist, Max, Min, Stddev, Sum, cstr, i64, ptr, u64
from anyprobe.core.errors import HandlerError
from anyprobe.data.layouts import buckets
from anyprobe.handlers.bpf.layouts import AT_TRACEPOINT
from anyprobe.handlers.bpf.machine import compile_bpf
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.types.storages import Table
from anyprobe.target.kernel import programs
from support import bpf_running, generating
from support.reference.bucket_index import log_linear_index

REFUSED = bpf_running.refused_because()
pytestmark = pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))

IN_THE_KERNEL = Setting(kernel=frozenset({"pid", "tid", "comm", "ustack", "kstack"}))
FIRST = 100_000
"""Numbers of system calls that there are not, from here on: a tracepoint passes them nevertheless."""
PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static long call(long number) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number) : "rcx", "r11", "memory");
    return result;
}
__attribute__((noinline)) long inner(long number) { return call(number) + 1; }
__attribute__((noinline)) long outer(long number) { return inner(number) + 1; }
static long rounds;
static void *work(void *which) {
    for (long i = 0; i < rounds; i++) outer(100000 + (i * 7919 + (long)which) % 50021);
    return 0;
}
int main(int count, char **words) {
    pthread_t threads[16];
    long n = atol(words[1]);
    rounds = atol(words[2]);
    getchar();
    for (long i = 0; i < n; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (long i = 0; i < n; i++) pthread_join(threads[i], 0);
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A program whose threads make system calls, with frame pointers."""
    place = tmp_path_factory.mktemp("calls")
    (place / "calls.c").write_text(PROGRAM)
    command = [
        "gcc",
        "-O0",
        "-fno-omit-frame-pointer",
        "-no-pie",
        "-pthread",
        "-o",
        "calls",
        "calls.c",
    ]
    subprocess.run(command, cwd=place, check=True, timeout=180)
    return place / "calls"


@contextmanager
def waiting(program, threads, rounds):
    """Start the program, which waits for a word."""
    child = subprocess.Popen([program, str(threads), str(rounds)], stdin=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@contextmanager
def attached(function):
    """Run a handler at the entry of all system calls."""
    with bpf_running.KernelStorages(function) as storages:
        code = storages.placed(compile_bpf(function, passed=AT_TRACEPOINT))
        loaded = programs.load(code, programs.Kind(programs.PROGRAM_OF_A_TRACEPOINT))
        try:
            link = programs.attach_raw(loaded, "sys_enter")
        finally:
            os.close(loaded)
        try:
            yield storages
        finally:
            os.close(link)


def place_of(function, aggregation):
    """Return which storage of a handler is an aggregation's."""
    return next(
        index
        for index, each in enumerate(function.storages)
        if isinstance(each, Table) and each.layout.aggregation is aggregation
    )


def test_four_threads_at_a_tracepoint_agree_with_a_recomputation(program):
    values, ends, top = Hist("values"), Min("ends", by=("low",)), Max("top")
    squares, sums = Stddev("squares", by=("thread",)), Sum("sums", by=("comm",))
    with waiting(program, 4, 20_000) as child:
        process, first = child.pid, FIRST

        def collect(ctx, registers: u64, number: i64):
            if ctx.pid == process and number >= first:
                values.add(number)
                ends[number & 15].add(number)
                top.add(number)
                squares[ctx.tid].add(number)
                sums[ctx.comm].add(number)

        function = intermediate(collect)
        with attached(function) as storages:
            child.communicate(b"\n", timeout=180)
            found = {each: storages.result(place_of(function, each)) for each in (values, ends, top, squares, sums)}
            assert storages.misses() == {"fault": 0, "abandoned": 0, "division": 0}
    each_thread = [[FIRST + (i * 7919 + which) % 50021 for i in range(20_000)] for which in range(4)]
    numbers = [number for thread in each_thread for number in thread]
    assert all(result.dropped == 0 for result in found.values())
    wanted = Counter(buckets.log_linear_bounds(log_linear_index(number)) for number in numbers)
    cell = found[values].entries[()]
    assert (cell.sum, cell.min, cell.max) == (sum(numbers), min(numbers), max(numbers))
    assert {(low, high): count for low, high, count in cell.buckets} == wanted
    lowest = {(low,): min(number for number in numbers if number & 15 == low) for low in range(16)}
    assert {key: each.min for key, each in found[ends].entries.items()} == lowest
    assert sum(each.count for each in found[ends].entries.values()) == len(numbers)
    assert found[top].entries[()].max == max(numbers)
    by_thread = sorted((each.count, each.sum, each.squares) for each in found[squares].entries.values())
    assert by_thread == sorted((len(each), sum(each), sum(n * n for n in each)) for each in each_thread)
    assert {key: each.sum for key, each in found[sums].entries.items()} == {("calls",): sum(numbers)}


def test_a_full_map_counts_what_it_drops():
    few = Sum("few", by=("key",), capacity=8)

    def collect(key: i64):
        few[key].add(key)

    function = intermediate(collect)
    with bpf_running.Runner(function) as runner:
        for key in [*range(20), *range(20), *range(4)]:
            runner.call([key])
        result = runner.storages.result(0)
    assert {key: (cell.count, cell.sum) for key, cell in result.entries.items()} == {
        (key,): (3 if key < 4 else 2, key * (3 if key < 4 else 2)) for key in range(8)
    }
    assert result.dropped == 2 * 12


def test_squares_of_large_numbers_are_exact_whatever_they_come_to():
    signed, unsigned = Stddev("signed"), Stddev("unsigned", by=("key",))

    def collect(value: i64, other: u64):
        signed.add(value)
        unsigned.add(other, key=(1,))

    values = [*[(1 << 63) - 1] * 9, -(1 << 63), -1, -5, 3_000_000_001, 0x1234567890ABCDEF]
    function = intermediate(collect)
    with bpf_running.Runner(function) as runner:
        for value in values:
            runner.call([value % (1 << 64), value % (1 << 64)])
        found = runner.storages.result(place_of(function, signed)).entries[()]
        other = runner.storages.result(place_of(function, unsigned)).entries[(1,)]
    assert found.sum == sum(values)
    assert other.sum == sum(value % (1 << 64) for value in values)
    assert found.squares == sum(value**2 for value in values)
    assert other.squares == sum((value % (1 << 64)) ** 2 for value in values)


def test_extremes_that_threads_raise_at_the_same_time():
    top = Max("top")

    def collect(value: i64):
        top.add(value)

    function = intermediate(collect)
    with bpf_running.Runner(function) as runner:

        def raise_from(first):
            for value in range(first, 20_000, 4):
                runner.call([value - 10_000])

        threads = [threading.Thread(target=raise_from, args=(first,)) for first in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        result = runner.storages.result(0)
    assert (result.entries[()].max, result.entries[()].count + result.dropped) == (9_999, 20_000)
    assert result.dropped == 0


@pytest.mark.parametrize("choose", ["min(value, -5)", "max(value, -5)"])
def test_a_signed_choice_compared_without_sign(choose):
    """LLVM splits comparisons with a minimum or maximum, in loops such as that in which a cell is raised."""
    top = Max("top", by=("key",))
    collect = generating.define(
        f"def collect(key: u64, value: i64):\n    top.add(u64({choose}), key=(key,))\n", "collect", top=top
    )
    values = [0, -1, -5, -6, 7, -(1 << 63), (1 << 63) - 1]
    with bpf_running.Runner(intermediate(collect)) as runner:
        for key, value in enumerate(values):
            runner.call([key, value % (1 << 64)])
        found = {key: cell.max for (key,), cell in runner.storages.result(0).entries.items()}
    assert found == {key: eval(choose) % (1 << 64) for key, value in enumerate(values)}  # noqa: S307 - one of ours


def test_texts_and_negative_numbers_in_keys():
    words = Count("words", by=("word", "number"))

    def collect(word: ptr, number: i64):
        words[cstr(word, 16), number].add()

    function = intermediate(collect)
    texts = [ctypes.create_string_buffer(each) for each in (b"red", b"a green one, cut off", b"")]
    with bpf_running.Runner(function) as runner:
        for text in (*texts, texts[0]):
            runner.call([ctypes.addressof(text), -5])
        assert runner.run([8, 0])[1] == {"fault": 1, "abandoned": 1, "division": 0}
        entries = runner.storages.result(0).entries
    assert {key: cell.count for key, cell in entries.items()} == {
        ("red", -5): 2,
        ("a green one, cut", -5): 1,
        ("", -5): 1,
    }


def test_stacks_at_a_tracepoint(program):
    where = Count("where", by=("stack",))
    with waiting(program, 2, 500) as child:
        process, first = child.pid, FIRST

        def collect(ctx, registers: u64, number: i64):
            if ctx.pid == process and number >= first:
                where[ctx.ustack(3)].add()

        function = intermediate(collect, IN_THE_KERNEL)
        with attached(function) as storages:
            child.communicate(b"\n", timeout=180)
            (key, cell), *more = storages.result(place_of(function, where)).entries.items()
            stacks = next(index for index, each in enumerate(function.storages) if not isinstance(each, Table))
            frames = storages.maps.stack(key[0])
            assert storages.dropped_stacks(stacks) == 0
            assert storages.maps.stack(0) == []
            assert key[0] >> 32 == process
    assert (cell.count, more) == (1000, [])
    symbols = _functions(program)
    assert [_function_at(symbols, each) for each in frames] == ["call", "inner", "outer"]


def _functions(program):
    listed = subprocess.run(["nm", program], check=True, capture_output=True, text=True, timeout=180).stdout
    lines = [line.split() for line in listed.splitlines()]
    return sorted((int(line[0], 16), line[2]) for line in lines if len(line) == 3 and line[1] in "tT")


def _function_at(symbols, address):
    return [name for start, name in symbols if start <= address][-1]


def test_what_the_kernel_cannot_is_refused():
    seen = Count("seen", by=("stack",))

    def with_ip(ctx):
        seen[ctx.ip].add()

    def with_stack(ctx):
        seen[ctx.ustack(4)].add()

    with pytest.raises(HandlerError, match="no ip here in the kernel"):
        compile_bpf(intermediate(with_ip), passed=AT_TRACEPOINT)
    with pytest.raises(HandlerError, match="at tracepoints only"):
        compile_bpf(intermediate(with_stack, IN_THE_KERNEL))
