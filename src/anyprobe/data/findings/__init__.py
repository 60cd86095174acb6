"""What single commands find out, as immutable values: coverage, waits, trees of calls, refusals.

In: numbers that were read. Out: values that reports print and archives keep. Must not read memory.
"""
