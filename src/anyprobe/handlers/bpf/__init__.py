"""The kernel's machine: handlers as BPF, and the maps that hold what they collect.

In: `ir`. Out: programs that the kernel's verifier accepts.
Must not reach the target: bpf(2) is called by `target.kernel`'s users alone.
"""
