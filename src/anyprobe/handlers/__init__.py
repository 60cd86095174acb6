"""The compiler of handlers: a Python function becomes machine code for the target or for the kernel."""
