"""Structures in the memory shared with the target, and the snapshots read from them."""
