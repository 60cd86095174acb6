"""Scripts: the session that they find, and what they do in the controller besides their handlers.

In: a session of any kind. Out: the current session, and functions called at its beginning, at its end and in between.
Must not know what is probed.
"""
