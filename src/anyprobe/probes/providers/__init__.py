"""Providers: where kinds of probes come from.

In: specs. Out: places with what is attached there.
Must not share state with each other.
"""
