"""Terminals: where output goes, how it may fail, and which signals and process groups come with one.

In: text and signals. Out: lines on streams, requests to end. Must not know any command.
"""
