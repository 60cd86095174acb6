"""Translation: what the program's signal handlers see while a thread is in generated code.

In: generated code and its displaced instructions. Out: tables and routines by which the program sees its own state.
Must not change what the program computes.
"""
