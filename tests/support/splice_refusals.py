"""The reasons for which splices of a kernel are refused that only a running kernel gives."""

from anyprobe.core.refusal import Reason

IN_GUESTS = (Reason.NO_INSTRUMENTATION, Reason.KPROBE, Reason.BUG, Reason.TASK_INSIDE)
"""Each has its test in ``tests/kernel/test_refusals.py``."""
