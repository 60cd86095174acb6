"""A live process: opened with checks, started, stopped for short scopes, released unharmed.

In: a pid or a command. Out: `Process`, scopes in which its threads stand still.
Must not know of splices.
"""
