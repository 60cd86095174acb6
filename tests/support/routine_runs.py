"""Runs of the generated routines, each in a process of its own: wrong code may do anything."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_MACHINE = Path(__file__).with_name("routine_machine.py")


def run_routines(steps: Sequence[Any], *arguments: object) -> dict[str, Any]:
    """Return what ``routine_machine`` prints after some steps; every call must have preserved everything."""
    process = subprocess.run(
        [sys.executable, str(_MACHINE), *map(str, arguments)],
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-500:]
    result: dict[str, Any] = json.loads(process.stdout)
    assert result["broken"] == []
    return result
