"""What is probed, a process or the kernel: every system call on it is made here.

In: a pid, a command or a kernel. Out: `Process` and its memory, threads that stand still, programs in the kernel.
Must not know splices or probes, nor keep the target from going on if the controller dies.
"""
