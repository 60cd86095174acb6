"""The syntax of command lines: options that commands share, help pages, completion in shells.

In: words of the command line. Out: checked values. Must not touch a process.
"""
