"""Show how long requests to block devices take, in nanoseconds by device: python block_latency.py [SECONDS]."""

import sys
import time

import anyprobe
from anyprobe import Hist, Map, ptr, u64

issued, latency = Map("issued", by=("request",), shown=False), Hist("latency", by=("device",))

with anyprobe.kernel() as session:
    request = ptr[session.type("struct request")]

    @session.entry("tracepoint:block:block_rq_issue")
    def issue(ctx, rq: request):
        issued.set((u64(rq),), ctx.now)

    @session.entry("tracepoint:block:block_rq_complete")
    def complete(ctx, rq: request):
        start = issued.delete((u64(rq),))
        if start is not None:
            latency.add(ctx.now - start, key=(rq.q.disk.disk_name,))

    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
    print(session.snapshot().aggregation("latency"))
