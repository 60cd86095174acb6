"""Which orders are slow: nanoseconds by their number of items, and a line for each that takes over 40 µs."""

from anyprobe import Hist, printf, session

by_items = Hist("ns of serve", by=("items",))


@session.call("a.out:serve")
def on_order(ctx, order):
    ctx.data.began = ctx.now
    ctx.data.items = order.items
    ctx.data.customer = order.customer


@on_order.ret
def on_served(ctx):
    took = ctx.now - ctx.data.began
    by_items[ctx.data.items].add(took)
    if took > 40_000:
        printf(f"customer {ctx.data.customer}: {ctx.data.items} items took {took // 1000} us")
