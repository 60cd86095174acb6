"""Commands that change what a program does: faults, replaced functions, waits, another layout of its code.

In: options. Out: changed calls, and what has been changed. Must not go on when anyprobe has ended.
"""
