"""The journal in the target: what is installed and how to undo it, and what is registered.

In: changes before they are made. Out: records that outlive the controller.
Must not believe what it reads: the program may have damaged it.
"""
