"""Thin typed layers over the kernel's interfaces to a process: ptrace, /proc, memory, futexes.

In: pids and addresses. Out: values, or an `OSError` of the kernel; `gateway` makes all calls that change the target.
Must not keep state about the target.
"""
