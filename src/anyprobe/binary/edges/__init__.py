"""Edges: where control goes from one run of instructions to another, and how often, of what is counted.

In: the flow of functions, and counts of runs. Out: edges by address, and those counts that follow.
Must not say a count that does not follow.
"""
