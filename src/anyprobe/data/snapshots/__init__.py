"""Snapshots: all that a session knows at one moment, the difference of two, and the sum of several.

In: numbers of readers. Out: immutable values, the only ones that reports see. Must not read memory.
"""
