"""Formats in which results leave anyprobe for other tools: JSON, flame graphs, coverage, profiles, collapsed stacks.

In: what a command has measured, as snapshots. Out: text in a file's format. Must not touch a process or
know the command line.
"""
