"""ELF objects: symbols, names, notes, relocations, and the functions that they list.

In: files and mappings as plain bytes and values. Out: `Image`, `Text`, functions by name and address; a cache on disk.
Must not follow control flow: that is `flow`.
"""
