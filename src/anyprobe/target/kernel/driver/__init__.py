"""The driver: a module of the kernel that gives memory in reach of its text, and writes text in atomic batches.

In: patches, and writes with the bytes that are to be there before. Out: a batch in force, or a refusal by name.
Must not decode or plan: what a patch is and where it may go is decided elsewhere.
"""
