"""Print TCP connections that close: ports, microseconds, bytes sent: python tcp_lives.py [SECONDS]."""

import sys
import time

import anyprobe
from anyprobe import Map, emit, i32, ptr, u64

began = Map("began", by=("socket",), shown=False)
with anyprobe.kernel() as session:

    @session.entry("kernel::tcp_set_state")
    def changes(ctx, sk: ptr[session.type("struct tcp_sock")], state: i32):
        start, ends = began.get((u64(sk),)), sk.inet_conn.icsk_inet.sk.__sk_common  # noqa: SLF001
        if state == 1:  # TCP_ESTABLISHED
            began.set((u64(sk),), ctx.now)
        if state == 7 and start is not None and began.delete((u64(sk),)):  # TCP_CLOSE
            far, us = (ends.skc_dport & 255) << 8 | ends.skc_dport >> 8, (ctx.now - start) // 1000
            emit("life", near=ends.skc_num, far=far, us=us, sent=sk.bytes_acked)

    shown = "{near} -> {far}: {us} us, {sent} bytes sent"
    session.on("life")(lambda event: print(shown.format(**event.fields), flush=True))
    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
