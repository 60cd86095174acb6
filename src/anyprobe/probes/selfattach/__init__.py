"""Probing the Python program that one is in: a second process does the work.

In: calls in the program. Out: the same session interface, served by that process.
Must not let the program's threads wait for that process longer than for a change.
"""
