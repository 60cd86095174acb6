"""All functions of the kernels that guests are made of, analysed from their files."""

import os
import time
from pathlib import Path

import pytest

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.kernel.source import KernelSource
from anyprobe.core.refusal import Refusal

GUESTS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anyprobe" / "guests"
COLD, KEPT = 25, 4
"""Seconds of a processor, three times what it takes: so slow may it be elsewhere."""


def analysed(path):
    """Return the code of a kernel, with everything found that sessions keep, and what that took."""
    begun = time.process_time()
    kernel = KernelSource.of_file(str(path)).kernel
    code = CodeMap(kernel.text(), kernel.cold_parts)
    code.survey()
    return kernel, code, time.process_time() - begun


@pytest.mark.parametrize("name", ["6.1", "6.12"])
def test_the_control_flow_of_nearly_all_functions_is_known(name, tmp_path, monkeypatch):
    path = GUESTS / name / "vmlinux"
    if not path.exists():
        pytest.skip(f"{path} is missing: make guest")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel, code, seconds = analysed(path)
    assert seconds < COLD
    found = [code.function_at(start) for start in kernel.functions.starts.tolist()]
    assert len(found) > 40_000
    unknown = [each for each in found if isinstance(each, Refusal) or each.complete is not None]
    assert len(unknown) <= len(found) // 1000
    *_, again = analysed(path)
    assert again < KEPT
