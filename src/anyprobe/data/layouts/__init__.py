"""Layouts of shared memory: which word means what to generated code and to readers.

In: declarations. Out: offsets, sizes, edges of buckets, keys as words. Must not read memory.
"""
