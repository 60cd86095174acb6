"""Fork children that count in blocks of their own, while they run and when they have ended.

In: blocks of counters. Out: what each process has counted. Must not stop a child.
"""
