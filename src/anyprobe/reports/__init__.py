"""Snapshots as text for people: tables, histograms, lines.

In: an immutable snapshot and a width. Out: text for a terminal, a pipe or a file.
Must not see a process or a session.
"""
