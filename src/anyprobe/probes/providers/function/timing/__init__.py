"""Calls from their beginning to their end: the points where they end, and trees of what they call.

In: probes that are timed, and what their banks hold.
Out: edits to be made, and call trees.
Must not change the process itself: whoever asks makes the edits.
"""
