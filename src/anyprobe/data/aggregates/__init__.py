"""Aggregations and records: as the user declares them, and what they hold, as values.

In: declarations and words of memory. Out: results that are merged, stored and shown. Must not know where the words are.
"""
