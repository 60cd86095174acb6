"""Passes over the intermediate language, one file each: a function from a handler to a handler.

In: a handler in `ir`. Out: a handler with the same meaning that does less, or bounds on what it does.
Must not know the machine that the code is for.
"""
