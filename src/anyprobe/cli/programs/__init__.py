"""Programs that a command is about: found by the command line, started, and what becomes of them at the end.

In: options. Out: sessions, started processes. Must not measure.
"""
