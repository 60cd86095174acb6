"""A program with functions to probe, and a session in it."""

import pytest

import anyprobe
from support.driver import build, started


@pytest.fixture
def target():
    with started(build("kprobed.c", "-O2", "-pthread")) as running:
        yield running


@pytest.fixture
def session(target):
    with anyprobe.attach(target.pid) as opened:
        yield opened
