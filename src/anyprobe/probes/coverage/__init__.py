"""Coverage: blocks and edges of functions that have run, and the source lines that these are.

In: wanted functions. Out: `Coverage`. Must not print it.
"""
