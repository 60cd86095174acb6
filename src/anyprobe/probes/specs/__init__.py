"""Probe specs: text in any of the known forms becomes parts.

In: text. Out: `Spec`, or an error with a caret.
Must not look at a process: that is resolving.
"""
