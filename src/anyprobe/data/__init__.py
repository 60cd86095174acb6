"""Structures in the memory shared with the target, and immutable values read from them.

In: shared memory as bytes. Out: counters, tables, maps, rings and stacks, read into `Snapshot` values.
Must not make a system call on the target: a reader works after the target's death, too.
"""
