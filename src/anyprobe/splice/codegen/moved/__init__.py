"""Functions, and many lines of one function, that run elsewhere: copies in which control stays as long as it can.

In: instructions of a function. Out: code at another address. Must not write it.
"""
