"""Functions that no table lists: code between the listed ones that something calls or points to.

In: the gaps between listed functions. Out: functions with bounds, each with its doubts.
Must not take data for code: what is not reached is left alone.
"""
