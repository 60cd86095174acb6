"""Why the kernel does not permit tracing a process, and what would help."""

import os

from anyprobe.core.errors import PermissionDenied
from anyprobe.target.system import procfs

_CAP_DAC_OVERRIDE, _CAP_SYS_PTRACE = 1, 19
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_YAMA_RULES = {
    1: (
        "only descendants may be traced",
        "start it with 'anyprobe ... -- COMMAND', use sudo, or: sysctl kernel.yama.ptrace_scope=0",
    ),
    2: ("only processes with CAP_SYS_PTRACE may trace", "use sudo"),
    3: ("no process may trace until the next boot", "boot with kernel.yama.ptrace_scope=0"),
}  # fmt: skip


def has_ptrace_capability(status: dict[str, str]) -> bool:
    """Return whether a process with this status file has CAP_SYS_PTRACE."""
    return _has(status, _CAP_SYS_PTRACE)


def opens_files_of_others(status: dict[str, str]) -> bool:
    """Return whether it has CAP_DAC_OVERRIDE: ``/proc/PID/mem`` is a file that only its owner may open."""
    return _has(status, _CAP_DAC_OVERRIDE)


def _has(status: dict[str, str], capability: int) -> bool:
    return bool(int(status.get("CapEff", "0"), 16) >> capability & 1)


def yama_scope() -> int | None:
    """Return the value of Yama's ``ptrace_scope``, or ``None`` without Yama."""
    try:
        return int(procfs.read_file(_YAMA))
    except (OSError, ValueError):
        return None


def traced_by(pid: int, tracer: int) -> PermissionDenied:
    """Return the error for a process that another one traces."""
    try:
        name = procfs.read_stat(tracer).comm
    except OSError:
        name = "a process that has ended"
    return PermissionDenied(
        "traced",
        f"process {pid} is traced by {name} (pid {tracer})",
        f"detach {name} first; a process has one tracer at a time",
    )


def tracer_of(pid: int) -> int:
    """Return the pid of the tracer of a task, 0 without."""
    return int(procfs.read_status(pid).get("TracerPid", "0"))


def explain(pid: int) -> PermissionDenied:
    """Find the rule that forbids tracing ``pid``; called only after the kernel has refused."""
    theirs, own = procfs.read_status(pid), procfs.read_status(os.getpid())
    if tracer := int(theirs.get("TracerPid", "0")):
        return traced_by(pid, tracer)
    capable = has_ptrace_capability(own)
    scope = yama_scope()
    if scope == 3 or (scope == 2 and not capable):
        return _yama(pid, scope)
    if not capable:
        return _without_capability(pid, theirs, own, scope)
    if namespace(pid, "user") != namespace(os.getpid(), "user"):
        return PermissionDenied(
            "capability",
            f"process {pid} belongs to another user namespace, where our CAP_SYS_PTRACE does not count",
            "run anyprobe as root outside of the container",
        )
    owner = os.stat(f"/proc/{pid}/mem").st_uid
    if owner != os.geteuid() and not opens_files_of_others(own):
        return PermissionDenied(
            "capability",
            f"the memory of process {pid} is a file of uid {owner}, for which CAP_SYS_PTRACE is not enough",
            "give anyprobe CAP_DAC_OVERRIDE, too, or use sudo",
        )
    return _otherwise(pid, own)


def _without_capability(pid: int, theirs: dict[str, str], own: dict[str, str], scope: int | None) -> PermissionDenied:
    uid = os.geteuid()
    uids = [int(word) for word in theirs.get("Uid", "").split()[:3]]
    if any(other != uid for other in uids):
        return PermissionDenied(
            "uid", f"process {pid} runs as uid {uids[0]}, we are uid {uid}", "run anyprobe as that user or with sudo"
        )
    more = int(theirs.get("CapPrm", "0"), 16) & ~int(own.get("CapPrm", "0"), 16)
    if more:
        return PermissionDenied("capability", f"process {pid} has capabilities that we lack", "use sudo")
    if os.stat(f"/proc/{pid}/mem").st_uid != uid:
        return PermissionDenied(
            "dumpable",
            f"process {pid} is closed to inspection: set-uid, unreadable executable, or prctl(PR_SET_DUMPABLE)",
            "use sudo",
        )
    if scope:
        return _yama(pid, scope)
    return _otherwise(pid, own)


def _yama(pid: int, scope: int) -> PermissionDenied:
    detail, remedy = _YAMA_RULES.get(scope, ("tracing is restricted", "use sudo"))
    return PermissionDenied("yama", f"process {pid}: kernel.yama.ptrace_scope is {scope}, {detail}", remedy)


def _otherwise(pid: int, own: dict[str, str]) -> PermissionDenied:
    if own.get("Seccomp", "0") != "0":
        return PermissionDenied(
            "seccomp",
            f"a seccomp filter over anyprobe itself forbids tracing process {pid}",
            "in a container, allow ptrace (docker run --cap-add SYS_PTRACE)",
        )
    return PermissionDenied(
        "security-module",
        f"the kernel forbids tracing process {pid}, although user and capabilities would permit it",
        "look for a denial by SELinux or AppArmor in the kernel log",
    )


def namespace(pid: int | str, kind: str) -> str:
    """Return the identity of a namespace of a process, empty where it cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""
