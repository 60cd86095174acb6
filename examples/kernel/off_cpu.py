"""Show for how long threads were off the processors, by name and kernel stack: python off_cpu.py [SECONDS]."""

import sys
import time

import anyprobe
from anyprobe import Map, Sum, ptr, u64

left, stacks = Map("left", by=("task",), shown=False), Map("stacks", by=("task",), shown=False)
away = Sum("away", by=("name", "stack"))

with anyprobe.kernel() as session:
    task = ptr[session.type("struct task_struct")]

    @session.entry("tracepoint:sched:sched_switch")
    def switches(ctx, preempt: u64, before: task, after: task):
        left.set((before.pid,), ctx.now)
        stacks.set((before.pid,), ctx.kstack(6))
        since, stack = left.delete((after.pid,)), stacks.delete((after.pid,))
        if since is not None and stack is not None:
            away.add(ctx.now - since, key=(after.comm, stack))

    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
    for (name, stack), cell in session.snapshot().aggregation("away").ordered():
        print(f"{(cell.sum or 0) / 1e6:10.1f} ms  {name}  {stack}")
