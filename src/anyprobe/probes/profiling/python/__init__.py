"""Python's own functions on sampled stacks: which interpreter a process has, and its frames as the kernel copies them.

In: samples, and the frames of C on their stacks. Out: the functions that each activation of the interpreter executes.
Must not stop a process, or tell a function that was not executed at the moment of the sample.
"""
