"""The controller killed, or a system call failing, at every single call; ``--torture`` makes these tests whole."""

from live.test_controller_killed import controller, target, test_every_call, test_random_moments

__all__ = ["controller", "target", "test_every_call", "test_random_moments"]
