"""Gates: where threads of the program wait a moment, until the controller has placed what is needed before they go on.

In: a session's host and its callbacks. Out: threads that go on. Must not keep a thread once the controller is gone.
"""
