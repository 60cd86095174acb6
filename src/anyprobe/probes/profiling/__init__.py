"""Where the time goes: stacks that the kernel samples, gone up and named without touching the process.

In: processes. Out: a ``Profile`` of ``data``. Must not stop a process, write into it, or read names of functions that
no sample has met.
"""
