"""System calls that threads of the target make for anyprobe, each in a form that the thread could finish alone.

In: a stopped thread and a system call. Out: its result.
Must not leave a thread in a state from which it cannot go on if the controller dies (docs/safety.md, rule 1).
"""
