"""Print each program that is executed: process, parent, name, file: python new_processes.py [SECONDS]."""

import sys
import time

import anyprobe
from anyprobe import cstr, emit, i32, ptr

with anyprobe.kernel() as session:
    task, program = ptr[session.type("struct task_struct")], ptr[session.type("struct linux_binprm")]

    @session.entry("tracepoint:sched:sched_process_exec")
    def executed(ctx, p: task, old_pid: i32, bprm: program):
        emit("exec", pid=ctx.pid, parent=p.real_parent.tgid, name=ctx.comm, file=cstr(bprm.filename, 128))

    @session.on("exec")
    def show(event):
        print("{pid:7} {parent:7} {name} {file}".format(**event.fields), flush=True)

    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
