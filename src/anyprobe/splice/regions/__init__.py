"""What one session has mapped in a target: code regions with their routines, banks of counters, stores of handlers.

In: requests with bounds on the address. Out: memory that both sides see, and stops in which it is mapped.
Must not write the program's text.
"""
