"""Probes in the running kernel, by the kernel's own engines."""
