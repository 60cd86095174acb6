"""Handlers that tests run as splices of a kernel: each name has one, or those of both ends of a call."""

from anyprobe import Count, Hist, Sum, cstr, emit, i64, ptr, u64

big, total, sizes, by_task, by_both, names, spent = (
    Count("big"), Sum("total"), Hist("sizes"), Count("by_task", by=("comm", "tid")), Hist("by_both", by=("cpu", "uid")),
    Count("names", by=("name",)), Sum("spent"),
)  # fmt: skip
reads = Sum("reads")


def counted(first: u64, second: u64, size: u64):
    if size > 64:
        big.add()


def summed(first: u64, second: u64, size: u64):
    if size > 64 and first != 3:
        total.add(size)


def measured(first: u64, second: u64, size: u64):
    sizes.add(size)


def keyed(ctx):
    by_task.add(key=(ctx.comm, ctx.tid))


def keyed_values(ctx, first: u64, second: u64, size: u64):
    by_both.add(size, key=(ctx.cpu, ctx.uid))


def read(first: ptr[u64]):
    reads.add(first[0])


def named(first: ptr[u64]):
    names.add(key=(cstr(first, 16),))


def recorded(ctx, first: u64, second: u64, size: u64):
    if size > 64:
        emit("it", pid=ctx.pid, size=size, ip=ctx.ip, name=ctx.comm)


def entered(ctx, first: u64):
    ctx.data.began = first


def left(ctx):
    began = ctx.data.began
    if began is not None:
        spent.add(ctx.retval - i64(began))


HANDLERS = {
    "counted": (counted,), "summed": (summed,), "measured": (measured,), "keyed": (keyed,),
    "keyed_values": (keyed_values,), "read": (read,), "named": (named,), "recorded": (recorded,),
    "call": (entered, left),
}  # fmt: skip
