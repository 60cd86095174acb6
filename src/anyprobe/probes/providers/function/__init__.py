"""The function provider: instructions of the functions of a process.

In: specs and the objects of a process. Out: sites to splice.
Must not change the target.
"""
