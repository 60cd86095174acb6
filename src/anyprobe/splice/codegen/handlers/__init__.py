"""Generated code between patches and compiled handlers: calls, what handlers are told, and where threads wait.

In: compiled handlers and the addresses that they need. Out: routines in code memory.
Must not destroy what the program still needs: liveness decides what is saved.
"""
