"""Rules of ``audit`` that come along, one file each, by name.

In: nothing. Out: in each file a list ``RULES``, as docs/auditing.md describes it.
Must not import anything: the files are read as those of users are.
"""
