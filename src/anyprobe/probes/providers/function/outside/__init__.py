"""Sessions as others see them: what is registered in a process, switched, asked for and removed from outside.

In: a process, with sessions of any controller. Out: lists, requests, and the program's own bytes.
Must not need the controller of a session to be alive, but for its answers to requests.
"""
