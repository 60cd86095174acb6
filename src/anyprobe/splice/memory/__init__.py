"""Memory of anyprobe in the target: code regions in reach, counters, stores of handlers, free address space.

In: requests with bounds on the address. Out: memory that both sides see.
Must not hand out memory again while a thread may still be in it.
"""
