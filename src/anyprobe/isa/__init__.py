"""x86-64: instructions and their effects, displaced copies, an assembler and a disassembler.

In: bytes and an address. Out: `Instruction` values, copies that run elsewhere, machine code with its assembly.
Must not know a process, a file or what the code is for.
"""
