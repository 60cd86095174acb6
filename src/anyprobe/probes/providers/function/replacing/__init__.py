"""Replacing functions: sets of them in one change, by others of the program or of shared objects loaded for it.

In: a session, functions and what is to be called instead. Out: what was replaced, which can be taken back. Must not
know how text is written, or how a function is called in the target.
"""
