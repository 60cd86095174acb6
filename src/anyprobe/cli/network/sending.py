"""``--send``: this anyprobe, with the packages that it needs, for hosts that have none.

It is what is installed here, so a host needs the same version of Python, x86-64 and glibc. It goes to the user's cache
there, in a folder that is named by its content, and is sent once.
"""

import asyncio
import hashlib
import io
import platform
import re
import shlex
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from anyprobe.core.errors import UsageError

if TYPE_CHECKING:
    import asyncssh

COMPILER = "llvmlite"
"""What handlers are compiled by: twice as large as everything else together."""
_OPTIONAL = re.compile(r";.*\b(?:extra|python_version|platform_system|sys_platform|os_name)\b")
_LEFT_OUT = re.compile(r"(?:^|/)(?:__pycache__|tests)/|\.(?:pyc|pyi|pth|a|h)$")
_START = b"""\
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "packages"))
from anyprobe.cli import main
sys.exit(main())
"""
"""Sets no variable: a command that is started has the host's own packages."""


class Unfit(Exception):  # noqa: N818 - what a host is
    """Why a host cannot run what would be sent."""


@dataclass
class Parcel:
    """What is sent."""

    with_compiler: bool
    _made: asyncio.Task[bytes] | None = field(default=None, init=False)

    @cached_property
    def files(self) -> list[tuple[str, Path]]:
        """Each file with its name there.

        Raises:
            UsageError: what is needed is not installed here.
        """
        found = {}
        for each in _needed("anyprobe", COMPILER if self.with_compiler else None):
            for file in each.files or ():
                name, path = str(file), Path(str(each.locate_file(file)))
                if not name.startswith(("..", "/")) and not _LEFT_OUT.search(name) and path.is_file():
                    found[name] = path
        import anyprobe

        root = Path(anyprobe.__file__).parent  # which a development installation does not list
        for path in root.rglob("*"):
            name = f"anyprobe/{path.relative_to(root)}"
            if path.is_file() and (not _LEFT_OUT.search(name) or name.endswith(".h")):
                found[name] = path
        return sorted(found.items())

    @cached_property
    def name(self) -> str:
        """The name of its folder: another one for other files, and for another Python."""
        digest = hashlib.sha256(f"{fit()} 1".encode())
        for name, path in self.files:
            status = path.stat()
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:20]

    @property
    def folder(self) -> str:
        """Where it is on a host, for the shell there."""
        return f'"${{XDG_CACHE_HOME:-$HOME/.cache}}"/anyprobe/sent/{self.name}'

    @property
    def command(self) -> str:
        """How it is called there."""
        return f"{self.folder}/anyprobe"

    def packed(self) -> bytes:
        """Return all of it as an archive of tar."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar:
            for name, path in self.files:
                tar.add(path, f"packages/{name}", recursive=False)
            about = tarfile.TarInfo("start.py")
            about.size = len(_START)
            tar.addfile(about, io.BytesIO(_START))
        return out.getvalue()

    async def send(self, connection: "asyncssh.SSHClientConnection") -> int:
        """Have a host have it; return how many bytes were sent, 0 if it was there.

        Raises:
            Unfit: it would not run there.
        """
        found = (await connection.run(_script(self._look()), check=False)).stdout
        answer = str(found or "").strip()
        if answer == "there":
            return 0
        python = re.search(r"^fit (\S+)$", answer, re.MULTILINE)
        if python is None:
            raise Unfit(f"what would be sent needs {fit()}, and there is {answer or 'no python3'}")
        self._made = self._made or asyncio.create_task(asyncio.to_thread(self.packed))  # one for all hosts
        content = await self._made
        done = await connection.run(_script(self._unpack(python[1])), check=False, input=content, encoding=None)
        printed, said = (each.decode(errors="replace") if isinstance(each, bytes) else str(each or "")
                         for each in (done.stdout, done.stderr))  # fmt: skip
        if "done" not in printed:
            raise Unfit(f"it cannot be unpacked there: {(said.strip().splitlines() or ['no reason is said'])[-1]}")
        return len(content)

    def _look(self) -> str:
        asked = "import sys, platform as p; print('%d.%d' % sys.version_info[:2], p.machine(), p.libc_ver()[0])"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return "\n".join(
            (
                f"test -x {self.folder}/anyprobe && {{ echo there; exit; }}",
                f"for p in {version} python3; do",
                f'w=$("$p" -I -c {shlex.quote(asked)} 2>/dev/null) || continue',
                "v=$w",
                f'test "$v" = "{fit()}" && {{ echo "fit $(command -v "$p")"; exit; }}',
                "done",
                'echo "$v"',
            )
        )

    def _unpack(self, python: str) -> str:
        start = f'#!/bin/sh\nexec {shlex.quote(python)} -I "${{0%/*}}/start.py" "$@"\n'
        return "\n".join(
            (
                "umask 077",
                f"d={self.folder}",
                't="$d.part.$$"',
                'mkdir -p "$t" && tar -xzf - -C "$t" || { rm -rf "$t"; exit 1; }',
                f'printf %s {shlex.quote(start)} >"$t/anyprobe" && chmod 700 "$t/anyprobe"',
                'mv -T "$t" "$d" 2>/dev/null || rm -rf "$t"',  # another one was quicker
                'test -x "$d/anyprobe" && echo done',
            )
        )


def fit() -> str:
    """Return what a host's Python has to be: its version, machine and C library."""
    return f"{sys.version_info.major}.{sys.version_info.minor} {platform.machine()} {platform.libc_ver()[0]}"


def _script(text: str) -> str:
    return f"exec sh -c {shlex.quote(text)}"


def _needed(*names: str | None) -> Iterator[Distribution]:
    """Yield packages and what they need, each once."""
    waiting, seen = [each for each in names if each], set[str]()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            raise UsageError(f"--send needs {name}, which is not installed here") from None
        yield found
        waiting += [
            re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in found.requires or () if not _OPTIONAL.search(each)
        ]


def uses_compiler(command: str, settings: "dict[str, object]") -> bool:
    """Return whether a command compiles handlers."""
    return command in {"hist", "trace"} or bool(settings.get("when") or settings.get("values"))
