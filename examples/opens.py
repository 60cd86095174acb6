"""Print the files that a program opens, and the name of the thread: anyprobe script opens.py -p PID."""

from anyprobe import cstr, printf, ptr, session


@session.entry("libc:open")
def on_open(ctx, path: ptr):
    printf(f"{ctx.comm} opens {cstr(path, 100)}")
