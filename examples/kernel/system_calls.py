"""Count system calls by process name and number: python system_calls.py [SECONDS]."""

import sys
import time

import anyprobe
from anyprobe import Count, i64, u64

calls = Count("calls", by=("name", "number"))

with anyprobe.kernel() as session:

    @session.entry("rawtracepoint:sys_enter")
    def enters(ctx, regs: u64, number: i64):
        calls.add(key=(ctx.comm, number))

    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
    print(session.snapshot().aggregation("calls"))
