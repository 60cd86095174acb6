"""Show how long tasks wait for a processor after a wake-up, in nanoseconds: python run_queue_latency.py [SECONDS]."""

import sys
import time

import anyprobe
from anyprobe import Hist, Map, ptr, u64

woken, waits = Map("woken", by=("task",), shown=False), Hist("waits")

with anyprobe.kernel() as session:
    task = ptr[session.type("struct task_struct")]

    @session.entry("tracepoint:sched:sched_wakeup", "tracepoint:sched:sched_wakeup_new")
    def wakes(ctx, p: task):
        woken.set((p.pid,), ctx.now)

    @session.entry("tracepoint:sched:sched_switch")
    def switches(ctx, preempt: u64, before: task, after: task):
        since = woken.delete((after.pid,))
        if since is not None:
            waits.add(ctx.now - since)

    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
    print(session.snapshot().aggregation("waits"))
