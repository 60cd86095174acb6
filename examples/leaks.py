"""Find leaks by stack: what has been allocated and is not freed yet, added up in the program itself.

anyprobe script examples/leaks.py -p PID --for 60, or -- COMMAND; an argument is after how many seconds each to print.

No record is written, so none can be lost: maps know the size and the stack of each block, and one sum by stack grows
with each allocation and shrinks when the block is freed, on whichever thread. What finds no room is told at the end.
Functions that leave by a jump to another one (memalign, aligned_alloc) have their result where their caller goes on.
Until that is known their calls have none, and that is told, too (abandoned).
"""

import sys

from anyprobe import Map, Sum, i64, ptr, session, stack, u64

BLOCKS = 1 << 18
sizes = Map("sizes", by=("block",), capacity=BLOCKS, value=i64, shown=False)
stacks = Map("stacks", by=("block",), capacity=BLOCKS, value=stack, shown=False)
outstanding = Sum("outstanding bytes", by=("stack",), capacity=4096)


def forget(block):
    size = sizes.delete((block,))
    where = stacks.delete((block,))
    if size is not None and where is not None:
        outstanding.add(-size, key=(where,))


def remember(block, size, where):
    if block != 0:
        forget(block)  # an allocator that calls another one: it is told of twice
        sizes[(block,)] = size
        stacks[(block,)] = where
        outstanding.add(size, key=(where,))


@session.call("libc:malloc")
def malloc(ctx, size: u64):
    ctx.data.size = i64(size)
    ctx.data.stack = ctx.ustack(10)


@malloc.ret
def malloc_returned(ctx):
    remember(u64(ctx.retval), ctx.data.size, ctx.data.stack)


@session.call("libc:calloc")
def calloc(ctx, count: u64, size: u64):
    ctx.data.size = i64(count * size)
    ctx.data.stack = ctx.ustack(10)


@calloc.ret
def calloc_returned(ctx):
    if ctx.retval is None:  # its caller is not known yet: it ends in a jump to memset, of what it has allocated
        remember(ctx.regs.rdi, ctx.data.size, ctx.data.stack)
    else:
        remember(u64(ctx.retval), ctx.data.size, ctx.data.stack)


@session.call("libc:memalign")
def memalign(ctx, alignment: u64, size: u64):
    ctx.data.size = i64(size)
    ctx.data.stack = ctx.ustack(10)


@memalign.ret
def memalign_returned(ctx):
    remember(u64(ctx.retval), ctx.data.size, ctx.data.stack)


@session.call("libc:aligned_alloc")  # it may jump to memalign, and has data of its own for that
def aligned_alloc(ctx, alignment: u64, size: u64):
    ctx.data.size = i64(size)
    ctx.data.stack = ctx.ustack(10)


@aligned_alloc.ret
def aligned_alloc_returned(ctx):
    remember(u64(ctx.retval), ctx.data.size, ctx.data.stack)


@session.call("libc:posix_memalign")
def posix_memalign(ctx, out: ptr[ptr], alignment: u64, size: u64):
    ctx.data.out = out
    ctx.data.size = i64(size)
    ctx.data.stack = ctx.ustack(10)


@posix_memalign.ret
def posix_memalign_returned(ctx):
    if ctx.retval & 0xFFFFFFFF == 0:
        remember(u64(ctx.data.out[0]), ctx.data.size, ctx.data.stack)


@session.call("libc:realloc")
def realloc(ctx, block: u64, size: u64):
    ctx.data.size = i64(size)
    ctx.data.stack = ctx.ustack(10)
    ctx.data.block = block
    ctx.data.old = sizes.get((block,), 0)
    ctx.data.where = u64(stacks.get((block,), 0))
    forget(block)  # now: when it returns, another thread may have got the place


@realloc.ret
def realloc_returned(ctx):
    if ctx.retval is None:  # its caller is not known yet; it has become malloc, which tells of itself
        return
    if ctx.retval != 0:
        remember(u64(ctx.retval), ctx.data.size, ctx.data.stack)
    elif ctx.data.old != 0 and ctx.data.size != 0:  # it has failed, and the block is there still
        remember(ctx.data.block, ctx.data.old, stack(ctx.data.where))


@session.entry("libc:free")
def free(block: u64):
    forget(block)


def report():
    """Print what is outstanding at this moment, the largest last."""
    print(f"-- {session.pid}: outstanding bytes by stack", flush=True)
    result = next(each for each in session.snapshot().aggregations if each.name == outstanding.name)
    for (where,), cell in result.ordered()[-10:]:
        if cell.sum:
            print(f"{cell.sum:>12,}  {where}", flush=True)


if len(sys.argv) > 1:
    session.interval(float(sys.argv[1]))(report)
