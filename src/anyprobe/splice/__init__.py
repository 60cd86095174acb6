"""The splice engine: it plans, prepares, arms and removes changes of a target's text.

In: wanted sites with their actions. Out: armed splices, refusals with reasons, a journal in the target.
Must not know specs, sessions or the language of handlers.
"""
