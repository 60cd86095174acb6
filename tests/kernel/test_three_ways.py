"""One handler at libc's ``read`` in a process, at the system call and at ``vfs_read``: three equal histograms."""

import pytest

import anyprobe
from anyprobe import Hist

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
        assert process.wait(60) == 0
        found = [*process.snapshot().aggregation("sizes").entries.items()]
        found += kernel.snapshot().aggregation("sizes").entries.items()
    places = {place: cell for (place,), cell in found}
    assert len(places) == 3, places
    assert any("vfs_read" in str(each) for each in places)
    for cell in places.values():
        assert (cell.count, cell.sum) == (COUNT * len(SIZES), COUNT * sum(SIZES))
    first, second, third = (cell.buckets for cell in places.values())
    assert first == second == third
