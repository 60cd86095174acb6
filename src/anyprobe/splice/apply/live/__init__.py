"""Changes made while the program runs: no thread stands still but one, for a system call or two.

In: emitted writes of one instruction each. Out: an armed target.
Must not take an order of writes of which some prefix is not a correct program.
"""
