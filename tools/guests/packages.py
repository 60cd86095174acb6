"""Debian's packages: the tools that make a guest, and the kernels."""

import os
import shutil
import subprocess
from pathlib import Path

from guests.errors import GuestUnavailable

TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "depmod": "kmod",
    "modprobe": "kmod",
    "cpio": "cpio",
    "xz": "xz-utils",
    "zstd": "zstd",
}
KERNELS = {"6.1": "linux-image-amd64", "6.12": "linux-image-6.12-amd64", "6.1-rt": "linux-image-rt-amd64"}
"""The packages that depend on the newest kernel of each kind in Debian 12."""
_ROOT_TOOLS = "/usr/sbin:/sbin"


def search_path() -> str:
    """Return PATH with the directories of root's tools, which users do not always have in it."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:{_ROOT_TOOLS}"


def tool(name: str) -> str:
    """Return where a tool is; raise ``GuestUnavailable`` where it is not installed."""
    found = shutil.which(name, path=search_path())
    if found is None:
        raise GuestUnavailable(f"{name} is not installed; it is in the package {TOOLS[name]}")
    return found


def install_tools() -> None:
    """Install what is missing, as ``make packages`` does; what cannot be installed, ``tool`` says."""
    missing = {package for name, package in TOOLS.items() if shutil.which(name, path=search_path()) is None}
    if missing:
        script = Path(__file__).parents[1] / "debian-packages.sh"
        subprocess.run([script, *sorted(missing)], check=False, stdin=subprocess.DEVNULL)


def _apt(*arguments: str, into: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=into, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def _newest(kernel: str) -> str | None:
    """Return the package that holds the newest kernel of a kind, as far as apt's lists know."""
    meta = KERNELS[kernel]
    for line in _apt("apt-cache", "depends", meta).stdout.splitlines():
        relation, _, name = line.strip().partition(": ")
        if relation == "Depends" and name.startswith("linux-image-"):
            return name
    return None


def _depended_on(package: str) -> list[str]:
    lines = map(str.strip, _apt("apt-cache", "depends", package).stdout.splitlines())
    return [line.partition(": ")[2] for line in lines if line.startswith("Depends: ")]


def download_headers(release: str, into: Path) -> list[Path]:
    """Download what modules for a kernel are built with; return the files, none where they cannot be had."""
    package = f"linux-headers-{release}"
    needed = [name for name in _depended_on(package) if name.startswith(("linux-headers-", "linux-kbuild-"))]
    if not needed or _apt("apt-get", "download", "-qq", package, *needed, into=into).returncode:
        return []
    return sorted(into.glob("linux-*.deb"))


def download(kernel: str, into: Path) -> Path:
    """Download the newest kernel of a kind and return the package's file; nothing is installed."""
    if shutil.which("apt-get") is None:
        raise GuestUnavailable(f"no package of Linux {kernel}: this is no Debian (apt-get is missing)")
    failure = "apt's lists do not name it"
    for update in (False, True):  # the lists may be missing, or older than what the server has
        if update:
            _apt("apt-get", "update", "-qq")
        name = _newest(kernel)
        if name is None:
            continue
        done = _apt("apt-get", "download", "-qq", name, into=into)
        found = sorted(into.glob(f"{name}_*.deb"))
        if done.returncode == 0 and found:
            return found[-1]
        failure = (done.stderr.strip().splitlines() or ["apt-get download failed"])[-1]
    raise GuestUnavailable(f"the package {KERNELS[kernel]} cannot be downloaded: {failure}")
