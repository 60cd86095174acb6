"""The journal in the target, and everything that is undone from it alone.

In: changes before they are made. Out: text as it was, after the controller has died, too.
Must not depend on the session that wrote it.
"""
