"""USDT markers of a process: what specs mean among them, and the types of their arguments.

In: specs, descriptions of virtual markers, and the objects that are loaded. Out: sites, which sessions splice as they
splice any instruction.
Must not change anything.
"""
