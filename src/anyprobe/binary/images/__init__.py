"""One object as a whole: everything that its file says about its code, and the objects that a program has loaded.

In: an ELF file, or mappings. Out: `Image`, `Text` with its functions, entries and restrictions, loaded modules by name.
Must not write to a process or read its registers: mappings and bytes are handed in.
"""
