"""Providers: where kinds of probes come from.

In: specs. Out: places with what is attached there.
Must not share state with each other, nor know a session. In ``probes``, they alone import ``splice``.
"""
