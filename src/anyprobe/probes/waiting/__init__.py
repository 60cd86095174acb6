"""Waiting: which locks threads wait for, how long, which threads hold them meanwhile, and where threads sleep.

In: a session. Out: handlers in its program, whose aggregations ``data.findings.waiting`` reads. Must not change what
the program does, nor know how results are shown.
"""
