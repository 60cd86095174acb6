"""The front end: a Python function becomes the intermediate language.

In: a function's syntax tree and what its names mean. Out: `ir`, or an error with file, line and column.
Must not know which machine the code is for.
"""
