"""Handlers of a session: compiled, placed, given memory, called back, and read.

In: Python functions and probes. Out: compiled handlers at places, and what they collected.
Must not call Python in the controller while the target is stopped for a change.
"""
