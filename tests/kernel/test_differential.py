"""Generated handlers give the same results in the guest's kernel as by CPython: few with LLVM, which is slow there."""

import os

import pytest
from hypothesis import HealthCheck, given, settings

from support import generating
from support.differential import KERNEL_COLLECTING, collect_in_the_kernel, compute_in_the_kernel, direct

EXAMPLES = int(os.environ.get("ANYPROBE_EXAMPLES", "10"))


def several(examples):
    health = list(HealthCheck)
    return settings(max_examples=examples, deadline=None, database=None, suppress_health_check=health, derandomize=True)


@pytest.mark.thorough
@several(EXAMPLES)
@given(generating.handlers(floats=False, memory=True))
def test_simple_handlers_compute_like_cpython(handler):
    compute_in_the_kernel(handler, direct)


@several(1)
@given(generating.handlers(floats=False, **KERNEL_COLLECTING[0]))
def test_a_simple_handler_collects_like_a_recomputation(handler):
    collect_in_the_kernel(handler, direct)


@pytest.mark.thorough
@several(EXAMPLES // 2)
@given(generating.handlers(floats=False, **KERNEL_COLLECTING[0]))
def test_simple_handlers_collect_like_a_recomputation(handler):
    collect_in_the_kernel(handler, direct)


@pytest.mark.thorough
@several(max(EXAMPLES // 5, 1))
@given(generating.handlers(floats=False, memory=True))
def test_handlers_by_llvm_compute_like_cpython(handler):
    compute_in_the_kernel(handler)


@pytest.mark.thorough
@several(max(EXAMPLES // 10, 1))
@given(generating.handlers(floats=False, **KERNEL_COLLECTING[1]))
def test_handlers_by_llvm_collect_like_a_recomputation(handler):
    collect_in_the_kernel(handler)
