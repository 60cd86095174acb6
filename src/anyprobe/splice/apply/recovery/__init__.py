"""Recovery: text and memory are given back from the journals alone, after the controllers that wrote them have died.

In: an address space with journals. Out: the program's own bytes, and who keeps what from being unmapped.
Must not depend on the session that wrote a journal, nor believe what the program may have damaged.
"""
