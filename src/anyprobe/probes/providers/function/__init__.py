"""The function provider: instructions of the functions of a process, from specs to what has been counted there.

In: specs and the objects of a process. Out: places that are spliced, and what their counters hold.
Must not know a session: parts of sessions call it.
"""
