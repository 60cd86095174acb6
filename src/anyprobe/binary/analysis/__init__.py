"""What an analysis may ask of a module and its functions, and where results are kept.

In: a module, or a module and a function of it. Out: the result of an analysis, made once, when it is asked for.
Must not know any analysis, nor the objects that run them: those are in `flow`.
"""
