"""What is installed in a process and what its removal did, as immutable values."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a journal in the target lists: something that is registered, or a site that was changed for it.

    ``type`` is the kernel's letter for what is registered, ``k``, ``r`` or ``j``; of a site, the letters of all that
    it serves. ``flags`` are of ``DISABLED``, ``OPTIMIZED`` (reached by a jump), ``GONE`` and, of a site, ``INTERNAL``
    (not for a probe; it serves the program's signal handlers). ``owner`` is the controller's pid, which may be gone.
    """

    address: int
    type: str
    symbol: str
    offset: int
    module: str
    strategy: str
    flags: tuple[str, ...] = ()
    session: str = ""
    owner: int = 0
    size: int = 0
    """How many bytes were written at a site."""

    @property
    def internal(self) -> bool:
        """Whether it is not for a probe."""
        return "INTERNAL" in self.flags

    def __str__(self) -> str:
        """Return the line that the kernel's list would have."""
        return kernels_line(self.address, self.type, f"{self.symbol}+{self.offset:#x}", self.module, self.flags)


def kernels_line(address: int, kind: str, place: str, module: str, flags: Iterable[str]) -> str:
    """Return a line of the kernel's ``kprobes/list``."""
    return f"{address:016x}  {kind}  {place}  {module} {''.join(f'[{flag}]' for flag in flags)}".rstrip()


@dataclass(frozen=True, slots=True)
class SwitchReport:
    """What ``enable --all`` or ``disable --all`` did."""

    pid: int
    enabled: bool
    changed: int = 0
    unchanged: int = 0
    """Sites that were as wanted already."""
    foreign: tuple[int, ...] = ()
    """Addresses that another program has written to; left alone."""
    pause_us: int = 0

    def __str__(self) -> str:
        """Return the report for the user."""
        if not self.changed and not self.unchanged:
            return "nothing is installed"
        what = "enabled" if self.enabled else "disabled"
        lines = [f"{what} {self.changed} sites in pid {self.pid}"]
        if self.unchanged:
            lines.append(f"{self.unchanged} were {what} already")
        lines += [f"the bytes at {at:#x} were changed by another program and left alone" for at in self.foreign]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class OptimizationReport:
    """What ``optimize`` has asked for, and whether it was done."""

    pid: int
    optimized: bool
    sessions: int = 0
    done: bool = False

    def __str__(self) -> str:
        """Return the report for the user."""
        if not self.sessions:
            return f"no living session has probes in pid {self.pid}"
        if not self.done:
            return f"asked the session in pid {self.pid}; it has not looked yet, and will do so with its next snapshot"
        return (
            f"the probes in pid {self.pid} are reached by {'jumps' if self.optimized else 'traps'} where that is safe"
        )


@dataclass(frozen=True, slots=True)
class RemovalReport:
    """What ``detach`` did: in which processes, how many splices, and what waits for threads to leave it."""

    processes: tuple[int, ...]
    restored: int
    unmapped_bytes: int = 0
    gone: int = 0
    """Splices whose text was unmapped or replaced meanwhile: nothing was written there."""
    not_quiet: tuple[str, ...] = ()
    """Mappings of anyprobe that a thread may still run in; the next ``detach`` removes them."""
    failed: tuple[str, ...] = ()
    """Processes that could not be cleaned, fork children among them, and why."""

    def merged(self, other: "RemovalReport") -> "RemovalReport":
        """Return the report of both removals."""
        return RemovalReport(
            tuple(dict.fromkeys(self.processes + other.processes)),
            self.restored + other.restored,
            self.unmapped_bytes + other.unmapped_bytes,
            self.gone + other.gone,
            self.not_quiet + other.not_quiet,
            self.failed + other.failed,
        )

    def __str__(self) -> str:
        """Return the report for the user."""
        if not self.processes and not self.failed:
            return "nothing was installed"
        where = ", ".join(map(str, self.processes))
        lines = [f"restored {self.restored} sites in pid {where}; unmapped {self.unmapped_bytes // 1024} KiB"]
        lines = lines if self.processes else []
        if self.gone:
            lines.append(f"{self.gone} sites were gone already: their text is unmapped or was replaced")
        lines += [f"kept {mapping}: a thread may still be inside; run detach again later" for mapping in self.not_quiet]
        lines += [f"{failure}; run detach again later" for failure in self.failed]
        return "\n".join(lines)
