"""The compiler of handlers: a Python function or C becomes machine code for the target or for the kernel.

In: a function and the types of what it sees. Out: `NativeCode` or BPF, with bounds on its time and its memory.
Must not know sites, sessions or processes.
"""
