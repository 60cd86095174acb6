"""The x86-64 machine: code that can be copied to any address.

In: `ir`. Out: `NativeCode` with what it clobbers.
Must not fault, wait, or run without a bound.
"""
