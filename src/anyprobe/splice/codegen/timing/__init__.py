"""Generated code that times calls: clocks, entries and exits, calls that are open, goroutines, replaced returns.

In: a layout and what is to be timed. Out: routines and parts of patches. Must not be run here but to measure its cost.
"""
