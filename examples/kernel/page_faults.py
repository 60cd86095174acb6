"""Count page faults by process name and the program's stack: python page_faults.py [SECONDS]."""

import sys
import time

import anyprobe
from anyprobe import Count

faults = Count("faults", by=("name", "stack"))

with anyprobe.kernel() as session:

    @session.entry("kernel::handle_mm_fault")
    def fault(ctx):
        faults.add(key=(ctx.comm, ctx.ustack(5)))

    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
    for (name, stack), cell in session.snapshot().aggregation("faults").ordered():
        print(f"{cell.count:8}  {name}  {stack}")
