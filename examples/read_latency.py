"""Time reads by hand, with a map from entry to return; `session.call` has data of each call for this purpose."""

from anyprobe import Hist, Map, session

began = Map("began", by=("tid",))
took = Hist("read ns", by=("comm",))


@session.entry("libc:read")
def on_read(ctx):
    began[ctx.tid] = ctx.now


@session.ret("libc:read")
def on_return(ctx):
    t0 = began.delete(ctx.tid)
    if t0 is not None:
        took[ctx.comm].add(ctx.now - t0)
