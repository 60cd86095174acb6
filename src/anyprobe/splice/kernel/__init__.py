"""Splices in a kernel: what is planned where, patches and writes as values, and the routines that call handlers.

In: the kernel's code as the analysis sees it, what is wanted, and compiled handlers. Out: patches and routines at given
addresses, with the writes that lead to them. Must not touch a kernel.
"""
