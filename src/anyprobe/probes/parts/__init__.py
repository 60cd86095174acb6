"""The parts that a session is composed of, each an object that says what it needs when it is made.

In: the host, which has the process, its code and its engine, and those of the other parts that one uses.
Out: what the methods of ``Session`` do. Must not know the session itself, nor assign to another part's attributes.
"""
