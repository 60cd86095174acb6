"""Unwinding tables: `.eh_frame`, exception tables, and what they say of a function's frame.

In: the sections of an object. Out: bounds, rules by address, landing pads.
Must not walk a stack: handlers do that in the target, `probes.handlers` in the controller.
"""
