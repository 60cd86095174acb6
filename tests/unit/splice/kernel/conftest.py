"""What tests of splices in small kernels share."""

import pytest

from support.builder import Builder


@pytest.fixture
def build(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Builder(tmp_path)
