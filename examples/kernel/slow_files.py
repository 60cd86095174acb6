"""Print operations on files that take longer than some milliseconds: python slow_files.py [SECONDS [MILLISECONDS]]."""

import sys
import time

import anyprobe
from anyprobe import cstr, emit

LEAST = int(float(sys.argv[2]) * 1e6) if len(sys.argv) > 2 else 10_000_000

with anyprobe.kernel() as session:

    @session.call("kernel::vfs_read", "kernel::vfs_write", "kernel::vfs_fsync_range")
    def begins(ctx, file):
        ctx.data.began, ctx.data.name = ctx.now, file.f_path.dentry.d_name.name

    @begins.ret
    def ends(ctx):
        if ctx.data.began is not None and ctx.now - ctx.data.began >= LEAST:
            emit("slow", pid=ctx.pid, ns=ctx.now - ctx.data.began, of=ctx.func, file=cstr(ctx.data.name, 64))

    session.on("slow")(lambda event: print(*[*event.fields.values()][1:], flush=True))
    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
