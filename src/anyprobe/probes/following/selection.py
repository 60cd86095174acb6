"""Which processes are meant: by name, by control group, by container."""

import os
import re
from dataclasses import dataclass

from anyprobe.core.errors import UsageError
from anyprobe.target.system import procfs

_CGROUPS = "/sys/fs/cgroup"
_SHORTEST = 8
"""Digits of a container's id that tell it from others."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a process has to be: one of some names, in a control group, in a container; what is empty is not asked."""

    names: tuple[str, ...] = ()
    cgroup: str = ""
    """As in ``/proc/PID/cgroup``, or below ``/sys/fs/cgroup``; processes in groups below it are meant, too."""
    container: str = ""
    """The beginning of its id, eight digits at least."""

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if self.container and not re.fullmatch(rf"[0-9a-fA-F]{{{_SHORTEST},64}}", self.container):
            raise UsageError(f"{self.container!r} is not the id of a container: {_SHORTEST} to 64 hexadecimal digits")
        if self.cgroup and not self.cgroup.startswith("/"):
            raise UsageError(f"{self.cgroup!r} is not a control group: give its path, as /system.slice/nginx.service")

    def __bool__(self) -> bool:
        """Return whether anything is asked."""
        return bool(self.names or self.cgroup or self.container)

    def __str__(self) -> str:
        """Return it in words."""
        parts = [f"named {' or '.join(self.names)}"] * bool(self.names)
        parts += [f"in {self.cgroup}"] * bool(self.cgroup) + [f"in container {self.container}"] * bool(self.container)
        return ", ".join(parts)

    def means(self, pid: int) -> bool:
        """Return whether a process is meant."""
        if pid == os.getpid() or (self.names and not names_of(pid) & set(self.names)):
            return False
        if not self.cgroup and not self.container:
            return True
        groups = cgroups_of(pid)
        return any(map(self._is_inside, groups)) if self.cgroup else any(map(self._is_contained, groups))

    def _is_inside(self, group: str) -> bool:
        wanted = self.cgroup.rstrip("/")
        if wanted == _CGROUPS or wanted.startswith(_CGROUPS + "/"):
            wanted = wanted.removeprefix(_CGROUPS)
        mine = not self.container or self._is_contained(group)
        return mine and (group == wanted or group.startswith(wanted + "/"))

    def _is_contained(self, group: str) -> bool:
        pattern = rf"(?:^|[-:/]){re.escape(self.container.lower())}[0-9a-f]*(?:\.scope)?(?:/|$)"
        return re.search(pattern, group.lower()) is not None

    def running(self) -> list[int]:
        """Return the processes of now that are meant, in ascending order."""
        return [pid for pid in sorted(procfs.read_processes()) if self.means(pid)]


def names_of(pid: int) -> set[str]:
    """Return the names that a process goes by: of the task, of the executable, of the command; none if it is gone."""
    process = f"/proc/{procfs.voice(pid)}"
    names = set()
    try:
        with open(f"{process}/comm", errors="replace") as comm:
            names.add(comm.read().strip())
        with open(f"{process}/cmdline", "rb") as arguments:
            names.add(os.path.basename(os.fsdecode(arguments.read().split(b"\0")[0])))
        names.add(os.path.basename(os.readlink(f"{process}/exe")))
    except OSError:
        pass  # gone meanwhile, or a stranger's executable that we may not look at
    return names - {""}


def cgroups_of(pid: int) -> list[str]:
    """Return the control groups that a process is in, one of each hierarchy; none if it is gone."""
    try:
        lines = procfs.read_file(f"/proc/{pid}/cgroup").decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]
