"""The same while probes are armed and removed without a stop."""

from live.test_live_arming import controller, test_every_call

__all__ = ["controller", "test_every_call"]
