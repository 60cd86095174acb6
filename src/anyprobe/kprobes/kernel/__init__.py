"""Kprobes of the running kernel: what the façade registers in a session on it.

In: the kernel's structures. Out: placed handlers, and the kernel's error numbers for what it forbids.
Must not set what ``probes.providers.kernel`` would refuse.
"""
