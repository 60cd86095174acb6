"""Python handlers in the guest's kernel: parameters by name, results, aggregations."""

import os

import pytest

import anyprobe
from anyprobe import Count, Hist, Sum
from support.in_kernel import writes_of

SIZE, TIMES = 777, 500


@pytest.fixture
def session():
    with anyprobe.kernel() as opened:
        yield opened


@pytest.fixture
def write():
    with writes_of(SIZE, TIMES) as run:
        yield run


@pytest.mark.parametrize("mechanism", ["fentry", pytest.param("kprobe", marks=pytest.mark.thorough)])
def test_parameters_by_name_and_results(session, write, mechanism):
    sums, sizes = Sum("sums", by=("pid",)), Hist("sizes")
    results = Sum("results", by=("pid",))

    @session.entry("kernel::vfs_write", when=lambda count: count == SIZE, mechanism=mechanism)
    def entered(ctx, count):
        sums.add(count, key=(ctx.pid,))
        sizes.add(count)

    @session.ret("kernel::vfs_write", mechanism=mechanism)
    def left(ctx):
        if ctx.retval == SIZE:
            results.add(ctx.retval, key=(ctx.pid,))

    assert not session.refused
    write()
    snapshot = session.snapshot()
    assert snapshot.aggregation("sums").entries[os.getpid(),].sum == SIZE * TIMES
    assert snapshot.aggregation("results").entries[os.getpid(),].sum == SIZE * TIMES
    assert snapshot.aggregation("sizes").entries[()].count >= TIMES
    assert all(site.hits >= TIMES for site in snapshot.sites)
    assert not snapshot.missing


@pytest.mark.thorough
def test_member_of_a_structure_of_the_kernel(session, write):
    # struct file begins with other members in each version; f_flags is looked up by the test itself
    from anyprobe.target.kernel import btf

    types = btf.running().kernel
    offset = types.member(types.structure("file"), "f_flags").offset
    index = offset // 4
    flags = Count("flags", by=("flags",))

    @session.entry("kernel::vfs_write")
    def entered(ctx, file: anyprobe.ptr[anyprobe.u32], count):
        if count == SIZE:
            flags.add(key=(file[index] & 3,))

    write()
    snapshot = session.snapshot()
    assert not snapshot.missing
    entries = snapshot.aggregation("flags").entries
    assert set(entries) == {(os.O_WRONLY,)}, entries
    assert entries[os.O_WRONLY,].count >= TIMES


def test_unknown_parameter_has_the_nearest_name(session):
    with pytest.raises(anyprobe.HandlerError, match="no parameter coutn"):

        @session.entry("kernel::vfs_write")
        def entered(ctx, coutn):
            pass

    assert not session.probes
