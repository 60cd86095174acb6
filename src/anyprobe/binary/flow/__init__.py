"""Control flow: the instructions of functions, what leads to them, and how control leaves.

In: `Text`. Out: `CodeMap` and `FunctionCode`, exits, jump tables, pieces of functions.
Must not guess: what is not proved is an uncertainty that planning sees.
"""
