"""Readers of shared memory: counters, tables, maps and rings become numbers.

In: memory as bytes, and its layout. Out: rows, cells, records. Must not make a system call on the target.
"""
