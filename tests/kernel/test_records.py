"""Records, maps and stacks of handlers in the guest's kernel."""

import os
import threading

import pytest

import anyprobe
from anyprobe import Count, Hist, Map, cstr, emit, printf

TIMES = 300


@pytest.fixture
def session():
    with anyprobe.kernel() as opened:
        yield opened


@pytest.fixture
def write():
    with open("/dev/null", "wb", buffering=0) as file:
        yield lambda sizes: file.writelines(b"x" * size for size in sizes)


def test_records_come_with_named_fields_in_order(session, write):
    mine = os.getpid()

    @session.entry("kernel::vfs_write", when=lambda ctx: ctx.pid == mine)
    def entered(ctx, file, count):
        emit("written", size=count, name=cstr(file.f_path.dentry.d_name.name, 16), thread=ctx.tid)
        printf(f"{count} bytes")

    heard = []
    session.on("written")(lambda event: heard.append(event.fields["size"]))
    sizes = [*range(1, TIMES + 1)]
    write(sizes)
    session.detach()
    assert [size for size in heard if size in sizes][-TIMES:] == sizes
    assert session.snapshot().dropped == {}


def test_what_was_emitted_is_there_after_the_end(session, write):
    mine = os.getpid()

    @session.entry("kernel::vfs_write", when=lambda ctx, count: ctx.pid == mine and count == 4321)
    def entered(ctx, count):
        emit("written", size=count, thread=ctx.tid)

    write([4321] * TIMES)
    session.detach()
    found = session.records()["written"]
    assert list(found["size"]) == [4321] * TIMES
    assert set(found["thread"].tolist()) == {threading.get_native_id()}
    assert (found["ts"][1:] >= found["ts"][:-1]).all()
    assert session.records() == {}


@pytest.mark.thorough
def test_a_map_carries_what_entry_knows_to_the_return(session, write):
    began, times, sizes = Map("began", by=("thread",)), Hist("times"), Hist("sizes")
    mine = os.getpid()

    @session.entry("kernel::vfs_write", when=lambda ctx, count: ctx.pid == mine and count == 777)
    def entered(ctx, count):
        began[ctx.tid] = ctx.now

    @session.ret("kernel::vfs_write")
    def left(ctx):
        since = began.delete(ctx.tid)
        if since is not None:
            times.add(ctx.now - since)
            sizes.add(ctx.retval)

    write([777] * TIMES)
    snapshot = session.snapshot()
    assert snapshot.aggregation("times").entries[()].count == TIMES
    assert snapshot.aggregation("sizes").entries[()].sum == 777 * TIMES
    assert not snapshot.dropped
    assert [each.entries for each in snapshot.maps] == [{}]


@pytest.mark.parametrize("mechanism", ["fentry", pytest.param("kprobe", marks=pytest.mark.thorough)])
def test_stacks_of_both_sides_have_names(session, write, mechanism):
    kernel_side, program_side = Count("kernel_side", by=("stack",)), Count("program_side", by=("stack",))
    mine = os.getpid()

    @session.entry("kernel::vfs_write", when=lambda ctx, count: ctx.pid == mine and count == 777, mechanism=mechanism)
    def entered(ctx, count):
        kernel_side.add(key=(ctx.kstack(8),))
        program_side.add(key=(ctx.ustack(4),))
        emit("where", at=ctx.kstack(2), user=ctx.uid)

    assert not session.refused
    write([777] * TIMES)
    snapshot = session.snapshot()
    kernel = {key[0]: cell.count for key, cell in snapshot.aggregation("kernel_side").entries.items()}
    program = {key[0]: cell.count for key, cell in snapshot.aggregation("program_side").entries.items()}
    (found,) = kernel
    assert kernel[found] == TIMES
    names = [each.partition("+")[0] for each in found.split(" < ")]
    assert names[0] == "vfs_write", names
    assert "ksys_write" in names
    assert sum(program.values()) == TIMES
    assert any("libc" in each or "python" in each for each in program), program
    (record, *_) = session.records()["where"]
    assert str(record["at"]).startswith("vfs_write")
    assert record["user"] == os.getuid()
    assert not snapshot.dropped
