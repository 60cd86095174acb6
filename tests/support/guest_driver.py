"""The driver for a guest's kernel, built on the host: in an emulated guest a compiler takes minutes.

``python -m support.guest_driver KERNEL`` builds it where the guest finds it, and compiles the handlers of splices.
"""

import subprocess
import sys
from pathlib import Path

from anyprobe.core import kept
from anyprobe.core.errors import TargetError
from anyprobe.target.kernel.driver import building
from support import spliced_handlers

ROOT = Path(__file__).parents[2]


def build(kernel: str) -> None:
    """Build the driver for a guest, if the guest and its kernel's headers can be had."""
    made = subprocess.run([ROOT / "tools/guest", "--make", "-k", kernel], capture_output=True, text=True, check=False)
    if made.returncode:
        return
    (modules,) = Path(made.stdout.strip(), "root/lib/modules").iterdir()
    if (modules / "build/Makefile").exists():
        building.build(modules.name, f"{kept.directory()}/driver", made_with=str(modules / "build"))


if __name__ == "__main__":
    try:
        build(sys.argv[1])
        spliced_handlers.compile_all()
    except TargetError as failure:
        sys.exit(str(failure))
