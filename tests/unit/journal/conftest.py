"""Memory in which journals are written."""

import pytest

from support.plain_memory import plain_memory_at


@pytest.fixture
def plain_memory():
    return plain_memory_at
