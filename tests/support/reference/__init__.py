"""What handlers mean, run by CPython: the reference that compiled handlers are compared with in tests.

In: a handler's source and the types that the front end has found. Out: its result, its updates and what it missed.
Must not know what handlers are compiled to.
"""
