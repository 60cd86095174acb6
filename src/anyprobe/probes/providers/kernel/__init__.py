"""The kernel provider: functions, tracepoints and system calls of the running kernel.

In: specs that begin with `kernel:`. Out: sites with an attachment made by the kernel's own engines.
Must not use `splice`: the kernel patches itself.
"""
