"""What a guest boots: a kernel of Debian's, unpacked, and an initial file system that mounts the host's."""

import fcntl
import lzma
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from guests.errors import GuestUnavailable
from guests.packages import download, download_headers, install_tools, search_path, tool

FORM = "1"
"""Counted up when what is made changes, so that guests made earlier are made again."""
_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console")
_SETUP_SECTORS, _PAYLOAD = 0x1F1, 0x248
"""Offsets in a bzImage: the sectors of its real-mode part, and where its compressed kernel is and how long."""


@dataclass(frozen=True)
class Image:
    """A kernel and its initial file system in the cache."""

    folder: Path

    @property
    def kernel(self) -> Path:
        """The uncompressed kernel."""
        return self.folder / "vmlinux"

    @property
    def initrd(self) -> Path:
        """The archive of the initial file system."""
        return self.folder / "initrd.cpio"

    @property
    def modules(self) -> Path:
        """What the guest has as ``/lib/modules``."""
        return self.folder / "root/lib/modules"

    @property
    def stamp(self) -> Path:
        """The file that is there when all else is."""
        return self.folder / "stamp"

    @property
    def is_made(self) -> bool:
        """Whether the image is complete and of today's form."""
        return self.stamp.exists() and self.stamp.read_text() == FORM


def cache() -> Path:
    """Return the directory of all guests."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "anyprobe/guests"


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def image(kernel: str, *, again: bool = False) -> Image:
    """Return the image of a kernel, made where it is not in the cache; raise ``GuestUnavailable`` if that fails."""
    made = Image(cache() / kernel)
    made.folder.mkdir(parents=True, exist_ok=True)
    with _only_one(made.folder):
        if again or not made.is_made:
            _make(kernel, made)
    return made


def fetch_headers(made: Image) -> None:
    """Put the kernel's headers beside its modules, where they can be had and are not there yet."""
    with _only_one(made.folder):
        (release,) = os.listdir(made.modules)
        headers = made.folder / f"root/usr/src/linux-headers-{release}"
        if not (headers / "Makefile").exists():
            _unpack_headers(made, headers, release)


def _make(kernel: str, made: Image) -> None:
    install_tools()
    shutil.rmtree(made.folder)
    made.folder.mkdir()
    print(f"fetching Debian's Linux {kernel}", file=sys.stderr)
    package = download(kernel, made.folder)
    root = made.folder / "root"
    _run("dpkg", "-x", package, root)
    package.unlink()
    # busybox's shell in the guest needs no more than the kernel, and the host's shell nothing of /boot
    (compressed,) = root.glob("boot/vmlinuz-*")
    made.kernel.write_bytes(uncompressed(compressed.read_bytes()))
    shutil.rmtree(root / "boot")
    (release,) = os.listdir(made.modules)
    _run(tool("depmod"), "-b", root, release)
    _write_initrd(made, release)
    made.stamp.write_text(FORM)


def _unpack_headers(made: Image, headers: Path, release: str) -> None:
    root = made.folder / "root"
    for package in download_headers(release, made.folder):
        _run("dpkg", "-x", package, root)
        package.unlink()
    if not headers.exists():
        print(f"no headers of Linux {release}: tests of the driver are skipped", file=sys.stderr)
        return
    makefile = headers / "Makefile"  # it names another folder as if it were installed
    makefile.write_text(makefile.read_text().replace("include /usr/", f"include {root}/usr/"))
    build = made.modules / release / "build"
    build.unlink(missing_ok=True)
    build.symlink_to(headers)


def _run(*arguments: str | Path) -> str:
    done = subprocess.run(
        arguments, check=False, capture_output=True, text=True, env={**os.environ, "PATH": search_path()}
    )
    if done.returncode:
        raise GuestUnavailable(f"{arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def _by_program(*arguments: str) -> Callable[[bytes], bytes]:
    def run(packed: bytes) -> bytes:
        # its status says that the kernel's four bytes of length after the stream are none of its own
        return subprocess.run(arguments, input=packed, capture_output=True, check=False).stdout

    return run


def uncompressed(boot_image: bytes) -> bytes:
    """Return the kernel's ELF file out of a bzImage."""
    start = (boot_image[_SETUP_SECTORS] + 1) * 512
    offset, length = struct.unpack_from("<II", boot_image, _PAYLOAD)
    packed = boot_image[start + offset : start + offset + length]
    forms: dict[bytes, Callable[[bytes], bytes]] = {
        b"\xfd7zXZ\0": lambda data: lzma.LZMADecompressor().decompress(data),
        b"\x28\xb5\x2f\xfd": _by_program("zstd", "-dc"),
        b"\x1f\x8b": lambda data: zlib.decompressobj(31).decompress(data),
    }
    for magic, unpack in forms.items():
        if packed.startswith(magic):
            kernel = unpack(packed)
            if kernel.startswith(b"\x7fELF"):
                return kernel
    raise GuestUnavailable(f"the kernel is compressed in an unknown way ({packed[:6].hex()})")


def _needed_modules(made: Image, release: str) -> list[Path]:
    """Return the files of the modules that the initial file system loads, each after those that it needs."""
    found: dict[Path, None] = {}
    for name in _MODULES:
        listed = _run(tool("modprobe"), "-d", made.folder / "root", "-S", release, "--show-depends", name)
        for line in listed.splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "insmod":
                found.setdefault(Path(rest.split()[0]))
    return list(found)


def _write_initrd(made: Image, release: str) -> None:
    tree = made.folder / "initrd"
    for name in ("bin", "dev", "proc", "sys", "new", "host", "over", "modules"):
        (tree / name).mkdir(parents=True)
    shutil.copy(tool("busybox"), tree / "bin/busybox")
    order = []
    for source in _needed_modules(made, release):
        name = source.name.removesuffix(".xz")
        content = source.read_bytes()
        (tree / "modules" / name).write_bytes(lzma.decompress(content) if source.suffix == ".xz" else content)
        order.append(name)
    (tree / "modules/order").write_text("\n".join(order) + "\n")
    shutil.copy(Path(__file__).with_name("init.sh"), tree / "init")
    (tree / "init").chmod(0o755)
    names = "\0".join(sorted(str(path.relative_to(tree)) for path in tree.rglob("*")))
    with made.initrd.open("wb") as archive:
        subprocess.run(
            [tool("cpio"), "-o", "-0", "-H", "newc", "--quiet"], cwd=tree, input=names.encode(), stdout=archive,
            check=True,
        )  # fmt: skip
    shutil.rmtree(tree)
