"""What is wanted of a process, and how what is installed is brought to it: planned, placed, replanned, withdrawn.

In: specs with policies. Out: places, refusals. Must not write text: `splice` does.
"""
