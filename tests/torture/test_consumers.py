"""Every combination of probes before and after, changed inside a call."""

import pytest

import anyprobe
from support import consumers
from support.driver import build, started

pytestmark = pytest.mark.torture


def test_every_combination_of_consumers():
    with started(build("selftests.c", "-O2", "-pthread"), "inside") as target, anyprobe.attach(target.pid):
        consumers.check(target, consumers.COMBINATIONS)
        target.finish()
