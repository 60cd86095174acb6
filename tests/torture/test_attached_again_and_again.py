"""Attach, arm a thousand functions, detach, 200 times; sleeping system calls attached to a thousand times."""

from live.test_attach_loop import test_again_and_again, test_sleeping_calls_never_see_eintr

__all__ = ["test_again_and_again", "test_sleeping_calls_never_see_eintr"]
