"""What splices in a process need from user space: thread slots, SIGTRAP, signal actions, hooks at the C library.

In: a target. Out: handlers and hooks in it, journalled.
Must not be needed by a target that is not a process.
"""
