"""What ``doctor`` looks at: the machine, the user, one target and the kernel.

In: /proc, the kernel's settings, a process id, trials of mechanisms. Out: findings, each with what to do about it.
Must not leave anything changed.
"""
