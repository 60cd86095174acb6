"""Sum the bytes that the kernel allocates for itself, by caller: python kernel_memory.py [SECONDS]."""

import sys
import time

import anyprobe
from anyprobe import Sum, func, u64

asked = Sum("asked", by=("caller",))

with anyprobe.kernel() as session:

    @session.entry("tracepoint:kmem:kmalloc")
    def allocates(ctx, caller: func, address: u64, requested: u64):
        asked.add(requested, key=(caller,))

    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
    print(session.snapshot().aggregation("asked"))
