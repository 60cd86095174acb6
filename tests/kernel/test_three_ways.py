"""One handler at libc's ``read`` in a process, and in the kernel by BPF and by splices: what it collects is equal."""

import pytest

import anyprobe
from anyprobe import Hist
from support import spliced_handlers

COUNT, LEAST = 20, 1000
SIZES = [1 << power for power in range(10, 17) for _ in range(9, power)]


@pytest.mark.thorough
@pytest.mark.timeout(1200)  # two compilers in an emulated machine
def test_sizes_of_reads_are_the_same_in_libc_in_the_system_call_and_in_the_file_system(reads_sizes):
    sizes = Hist("sizes", by=("func",))
    process = anyprobe.run([reads_sizes, str(COUNT)])
    pid = process.pid

    def returned(ctx):
        if ctx.pid == pid and ctx.retval >= LEAST:  # the loader reads less
            sizes.add(ctx.retval, key=(ctx.func,))

    with process, anyprobe.kernel() as kernel:
        process.ret("libc:read", retval=anyprobe.i64)(returned)
        kernel.ret("syscall::read", "kernel::vfs_read")(returned)
        assert not kernel.refused
        process.resume()
        assert process.wait(600) == 0
        found = [*process.snapshot().aggregation("sizes").entries.items()]
        found += kernel.snapshot().aggregation("sizes").entries.items()
    places = {place: cell for (place,), cell in found}
    assert len(places) == 3, places
    assert any("vfs_read" in str(each) for each in places)
    for cell in places.values():
        assert (cell.count, cell.sum) == (COUNT * len(SIZES), COUNT * sum(SIZES))
    first, second, third = (cell.buckets for cell in places.values())
    assert first == second == third


@pytest.mark.thorough
def test_one_handler_as_bpf_as_a_splice_and_in_a_process(loaded, reads_sizes):
    process = anyprobe.run([reads_sizes, str(COUNT)])
    with process, anyprobe.kernel(mechanism="fentry") as traced, anyprobe.kernel(mechanism="splice") as spliced:
        process.entry("libc:read")(spliced_handlers.measured_alone)
        for session in (traced, spliced):
            session.entry("kernel::vfs_read")(spliced_handlers.measured)
            assert session.refused == []
        process.resume()
        assert process.wait(600) == 0
        own = (process.pid,)
        found = [each.snapshot().aggregation("sizes").entries[own] for each in (process, traced, spliced)]
        rows = [
            sorted(row["size"] for row in each.records()["large"] if row["pid"] == process.pid)
            for each in (traced, spliced)
        ]
    assert found[0] == found[1] == found[2]
    assert found[0].count == COUNT * len(SIZES), "the loader reads less"
    assert rows[0] == rows[1] == [1 << 16] * (COUNT * SIZES.count(1 << 16))
