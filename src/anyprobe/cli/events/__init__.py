"""Commands that show single events as they come: calls, writes to memory, system calls that an audit asks for.

In: records of handlers. Out: lines, files. Must not count.
"""
