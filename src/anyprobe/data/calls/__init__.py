"""Recorded calls: events of threads become calls with a beginning and an end, and those that a question is about.

In: events of archives. Out: calls. Must not print them.
"""
