"""What commands show of the running kernel and switch in it.

In: the kernel's lists and switches. Out: lines and documents.
Must not decide what a probe is or does.
"""
