"""Print each file that is opened on the machine, with the descriptor or the error: python opens.py [SECONDS]."""

import errno
import sys
import time

import anyprobe
from anyprobe import cstr, emit

with anyprobe.kernel() as session:

    @session.call("kernel::do_sys_openat2")
    def opens(ctx, filename):
        ctx.data.filename = filename

    @opens.ret
    def opened(ctx):
        emit("open", pid=ctx.pid, name=ctx.comm, result=ctx.retval, file=cstr(ctx.data.filename, 128))

    @session.on("open")
    def show(event):
        _, pid, name, result, file = event.fields.values()
        print(pid, name, errno.errorcode.get(-int(result), result), file, flush=True)

    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
