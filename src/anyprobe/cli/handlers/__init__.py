"""Expressions of the command line and the handlers that are made of them, at entries, returns and instructions.

In: texts of options. Out: armed handlers and their results. Must not compile: `handlers` does.
"""
