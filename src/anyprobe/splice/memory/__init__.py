"""Memory of anyprobe in the target: arenas and their pieces, free address space, pages of files.

In: sizes, and bounds on the address. Out: mappings that both sides see.
Must not hand out memory again while a thread may still be in it.
"""
