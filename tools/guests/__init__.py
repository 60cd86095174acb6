"""Guests: machines under QEMU's emulation with Debian's kernels and the host's file system."""
