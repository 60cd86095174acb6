"""What probes need to know of each thread: its id, its slot, and whether it may read the clock.

In: threads of the target. Out: whether generated code may rely on it. Must not change a thread.
"""
