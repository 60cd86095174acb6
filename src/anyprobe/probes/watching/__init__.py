"""Watchpoints: who writes to some memory, by events of the processor's debug registers, and what is there then.

In: a process and an address, or a variable's name. Out: ``Access`` values, in the order of time. Must not stop a
process, or write into it.
"""
