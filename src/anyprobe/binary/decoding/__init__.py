"""Instructions: what the bytes of functions decode to, and what one look at each instruction tells.

In: bytes and addresses. Out: instructions, branches, candidates of the scan, stack depths along a line.
Must not ask which function a branch leads to: that is `flow`.
"""
