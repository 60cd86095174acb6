"""Sum up who allocates how much, by the stack of the program: anyprobe script allocations.py -p PID --top 5."""

from anyprobe import Sum, session, u64

allocated = Sum("bytes", by=("stack",))


@session.entry("libc:malloc")
def on_malloc(ctx, size: u64):
    allocated.add(size, key=(ctx.ustack(8),))
