"""Applying changes: one stop, everything checked again, written whole or undone.

In: emitted writes. Out: an armed target, or an error and the target as before.
Must not write while a thread is inside bytes that change.
"""
