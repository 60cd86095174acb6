"""The same with traps."""

from live.test_traps import controller, test_every_call

__all__ = ["controller", "test_every_call"]
