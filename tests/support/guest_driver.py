"""The driver for a guest's kernel, built on the host: in an emulated guest a compiler takes minutes.

``python -m support.guest_driver KERNEL`` builds it where the guest finds it, and compiles the handlers of splices.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from anyprobe.core import kept
from anyprobe.core.errors import TargetError
from anyprobe.target.kernel.driver import building
from support import spliced_handlers

ROOT = Path(__file__).parents[2]
MODULES = "live_patch", "in_between"
"""Modules for tests: each has a folder beside this file."""


def module(name: str, release: str) -> Path:
    """Return where one of these modules is for a kernel, built or not."""
    source = Path(__file__).with_name(name)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(source.iterdir()))).hexdigest()[:16]
    return Path(kept.directory(), "driver", f"{release}-{name}-{digest}", f"{name}.ko")


def build_module(name: str, release: str, headers: Path) -> None:
    """Build a module for a kernel where it is not there yet; where it does not compile there is none."""
    built = module(name, release)
    if built.exists():
        return
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as work:
        for path in Path(__file__).with_name(name).iterdir():
            shutil.copy(path, work)
        command = ["make", "-s", "-C", headers, f"M={work}", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
        else:
            Path(work, built.name).replace(built)


def build(kernel: str) -> None:
    """Build the driver for a guest, if the guest and its kernel's headers can be had."""
    made = subprocess.run([ROOT / "tools/guest", "--make", "-k", kernel], capture_output=True, text=True, check=False)
    if made.returncode:
        return
    (modules,) = Path(made.stdout.strip(), "root/lib/modules").iterdir()
    if (modules / "build/Makefile").exists():
        building.build(modules.name, f"{kept.directory()}/driver", made_with=str(modules / "build"))
        for name in MODULES:
            build_module(name, modules.name, modules / "build")


if __name__ == "__main__":
    try:
        build(sys.argv[1])
        spliced_handlers.compile_all()
    except TargetError as failure:
        sys.exit(str(failure))
