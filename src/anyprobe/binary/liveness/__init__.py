"""Liveness: which registers and flags code at an instruction may destroy.

In: the flow of one function or of a whole module. Out: masks of what is dead.
Must not call anything dead that a signal handler's context or an unwinder may bring back.
"""
