"""Kernels as modules: what their tables say about their code, and their text as it was before it was last rewritten.

In: a listing of symbols and memory, of a live kernel or of a `vmlinux` file. Out: an image, as of any object.
Must not read a kernel itself, nor know what is running.
"""
