"""A dozen modules of CPython's own tests with every function of every module counted."""

from live.test_real_programs import test_cpythons_own_tests

__all__ = ["test_cpythons_own_tests"]
