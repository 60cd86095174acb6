"""Code generation: patches, shared routines, fragments of functions, trampolines.

In: splices and their actions. Out: machine code with its assembly beside it, and the writes that lead there.
Must not touch the target: `apply` writes.
"""
