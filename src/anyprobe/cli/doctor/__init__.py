"""What ``doctor`` looks at: the machine, the user and one target.

In: /proc, the kernel's settings, a process id. Out: findings, each with what to do about it.
Must not change anything.
"""
