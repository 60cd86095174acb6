"""Print the calls of a function that took long: anyprobe script slow_calls.py libc:read 1000000 -p PID."""

import sys

from anyprobe import printf, session

FUNCTION = sys.argv[1] if len(sys.argv) > 1 else "libc:read"
LEAST = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000


@session.call(FUNCTION)
def on_call(ctx):
    ctx.data.t0 = ctx.now


@on_call.ret
def on_return(ctx):
    if ctx.now - ctx.data.t0 >= LEAST:
        printf(f"{ctx.comm} {ctx.tid}: {(ctx.now - ctx.data.t0) // 1000} us")
