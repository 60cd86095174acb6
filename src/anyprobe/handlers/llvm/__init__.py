"""The back end on LLVM that both machines share, and updates of shared structures.

In: `ir`. Out: LLVM's language, and objects that its compiler makes of it.
Must not use an operation of LLVM with an operand for which it is undefined.
"""
