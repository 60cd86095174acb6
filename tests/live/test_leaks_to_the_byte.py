"""A leak finder by handlers: what it holds is what the program and its allocator say, to the byte.

The program's record is compared by requested and usable bytes; ``mallinfo2`` by whole chunks, whose sizes are read
before each block. Blocks that wait in a thread's own cache count as in use there, so that is switched off.
"""

import os

import pytest

import anyprobe
from anyprobe import Count, Map, i64, ptr, u64

pytestmark = pytest.mark.live
WAYS = ("auto", "callers")


def find_leaks(session, sizes, missing):
    """Place the handlers; calls that return unseen are counted as missing."""

    def kept(block, size):
        if block != 0:
            sizes[(block,)] = size

    @session.call("libc:malloc")
    def malloc(ctx, size: u64):
        ctx.data.size = i64(size)

    @session.call("libc:calloc")
    def calloc(ctx, count: u64, size: u64):
        ctx.data.size = i64(count * size)

    @session.call("libc:memalign")
    def memalign(ctx, alignment: u64, size: u64):
        ctx.data.size = i64(size)

    @session.call("libc:aligned_alloc")  # which may jump to memalign: a call of its own
    def aligned_alloc(ctx, alignment: u64, size: u64):
        ctx.data.size = i64(size)

    for each in (malloc, calloc, memalign, aligned_alloc):

        @each.ret
        def returned(ctx):
            if ctx.retval is None:
                missing.add()
                return
            kept(u64(ctx.retval), ctx.data.size)

    @session.call("libc:posix_memalign")
    def posix_memalign(ctx, out: ptr[ptr], alignment: u64, size: u64):
        ctx.data.out = out
        ctx.data.size = i64(size)

    @posix_memalign.ret
    def aligned(ctx):
        if ctx.retval is None:
            missing.add()
        elif ctx.retval & 0xFFFFFFFF == 0:
            kept(u64(ctx.data.out[0]), ctx.data.size)

    @session.call("libc:realloc")
    def realloc(ctx, block: u64, size: u64):
        ctx.data.size = i64(size)
        sizes.delete((block,))  # when it returns, another thread may have got the place

    @realloc.ret
    def moved(ctx):
        if ctx.retval is None:
            missing.add()
            return
        kept(u64(ctx.retval), ctx.data.size)

    @session.entry("libc:free")
    def free(block: u64):
        sizes.delete((block,))


def chunk_bytes(pid, blocks):
    """Return the sizes of the chunks of some blocks, which are before each of them."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return [int.from_bytes(os.pread(memory.fileno(), 8, block - 8), "little") & ~7 for block in blocks]


@pytest.mark.parametrize("returns", WAYS)
@pytest.mark.parametrize("threads", ["1", "6"])
def test_outstanding_bytes_are_those_of_mallinfo(run_target, monkeypatch, threads, returns):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")
    target = run_target("allocates.c", threads)
    sizes, missing = Map("sizes", by=("block",), capacity=1 << 15, value=i64), Count("missing")
    with anyprobe.attach(target.pid, returns=returns) as session:
        find_leaks(session, sizes, missing)
        assert not session.refused
        for _ in range(20):
            unseen = missing.result().total.count
            target.go(2)
            session.pump(0.05)
            if missing.result().total.count == unseen:
                break
        unseen = missing.result().total.count
        own = target.go(1).calls
        held = {block: size for (block,), size in sizes.read().items()}
        snapshot = session.snapshot()
        chunks = chunk_bytes(target.pid, held)
        assert missing.result().total.count == unseen
        assert sum(site.nmissed for site in snapshot.sites) == 0
        assert snapshot.dropped == {}
        assert snapshot.missing == {}
    assert len(held) == own["blocks"] > 300 * int(threads)
    assert sum(held.values()) == own["requested"]
    assert sum(chunks) == own["arena"]
    mapped = sum(chunk % 4096 == 0 and chunk >= 1 << 17 for chunk in chunks)
    assert sum(chunks) - 8 * len(held) - 8 * mapped == own["usable"]
    target.finish()
