"""Following a program wherever it goes: what it forks, and what it executes.

In: sessions on its processes. Out: a group of sessions that grows, one for each program that has been executed.
Must not trace anything for longer than an ``exec`` takes.
"""
