"""What object files say about code: symbols, bounds, control flow, liveness.

In: files and mappings as bytes. Out: `Module`, `Text`, `FunctionCode`, masks of registers that are dead.
Must not know a process, nor guess: an uncertainty is reported, and planning refuses.
"""
