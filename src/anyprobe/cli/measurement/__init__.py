"""Measuring commands: open, arm, wait, remove, show.

In: a `Plan`. Out: results on the terminal, as documents and in archives. Must not know which command it serves.
"""
