"""Count the files that could not be opened, by the error: the parameter is kept from the entry to the return."""

from anyprobe import Count, cstr, i32, ptr, session

failed = Count("failed opens", by=("path", "errno"))


@session.call("libc:open")
def on_open(ctx, path: ptr):
    ctx.data.path = path


@on_open.ret
def on_return(ctx):
    if i32(ctx.retval) < 0:
        failed.add(key=(cstr(ctx.data.path, 64), ctx.errno))
