"""What ``doctor -p`` asks of one process. Nothing is stopped and nothing is changed."""

import os
import re
from dataclasses import dataclass

from anyprobe.cli.doctor.finding import Finding
from anyprobe.core.errors import AnyprobeError, PermissionDenied
from anyprobe.target.process import permission
from anyprobe.target.system import procfs
from anyprobe.target.system.procfs import Mapping

LIBC = re.compile(r"/(libc\.so\.6|libc-2\.\d+\.so|ld-musl-x86_64\.so\.1)$")
GLIBC_VERSION = re.compile(rb"GNU C Library [^\n]*? version (\d+\.\d+)")
SECCOMP_MODES = {"0": "off", "1": "strict", "2": "filter"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read of the process, once."""

    pid: int
    """The id under which ``/proc`` shows it: another thread's where the first one has ended."""
    exe: str
    status: dict[str, str]
    mappings: tuple[Mapping, ...]
    threads: int
    emulator: str | None


def findings(pid: int) -> list[Finding]:
    """Return what was found; the first finding that forbids everything is the last."""
    from anyprobe.target.process.process import Process

    try:
        process = Process.open(pid)
    except PermissionDenied as denied:
        return [forbidden(denied)]
    except AnyprobeError as error:
        return [Finding("process", "no", str(error), "choose another process")]
    try:
        voice = procfs.voice(pid)
        if not may_read_memory(voice):
            return [forbidden(permission.explain(pid))]
        status = procfs.read_status(voice)
        mappings, threads = tuple(process.mappings()), living_threads(pid, process.threads())
        facts = Facts(voice, process.exe, status, mappings, threads, process.emulator())
        return [
            Finding("process", "ok", f"{process.exe}, {facts.threads} thread{'s' * (facts.threads != 1)}"),
            Finding("permission", "ok", "may be traced"),
            *(check(facts) for check in (emulation, seccomp, shadow_stack, runtime, text, kernel_probes, namespaces)),
        ]
    except AnyprobeError as error:
        return [Finding("process", "no", str(error))]
    except OSError as error:
        return [Finding("process", "no", f"process {pid} cannot be read: {error.strerror}")]
    finally:
        process.close()


def living_threads(pid: int, tids: list[int]) -> int:
    """Return how many threads run: the first one stays listed after its end until all have ended."""
    return sum(tid != pid or not procfs.read_stat(pid).ended for tid in tids)


def forbidden(denied: PermissionDenied) -> Finding:
    """Return the finding for a process that this one may not trace."""
    return Finding("permission", "no", str(denied).removesuffix(f"; {denied.remedy}"), denied.remedy)


def may_read_memory(pid: int) -> bool:
    """Return whether the kernel permits opening the memory, by the rule that ptrace follows too."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        return False
    return True


def emulation(facts: Facts) -> Finding:
    """Look whether the processor runs the program, or another program does."""
    emulator = facts.emulator
    if emulator is None:
        return Finding("emulation", "ok", "none: the processor runs the program")
    return Finding(
        "emulation", "no", f"run by {emulator}: probes in its text would not be met, or translated with it",
        f"probe the program without {emulator}",
    )  # fmt: skip


def seccomp(facts: Facts) -> Finding:
    """Check whether a seccomp filter judges the calls that anyprobe makes in the process."""
    mode = SECCOMP_MODES.get(facts.status.get("Seccomp", "0"), "unknown")
    if mode == "off":
        return Finding("seccomp", "ok", "no filter")
    return Finding(
        "seccomp",
        "limited",
        f"{mode}: it judges the mmap and memfd_create calls that anyprobe makes in the process",
        "as root with CAP_SYS_ADMIN anyprobe suspends the filter for these calls",
    )


def shadow_stack(facts: Facts) -> Finding:
    """Look whether the process runs on shadow stacks."""
    if "shstk" in facts.status.get("x86_Thread_features", "").split():
        return Finding(
            "shadow stack", "no", "in use: no system call can be injected into such a program",
            "start it without (for glibc: without x86_shstk in GLIBC_TUNABLES)",
        )  # fmt: skip
    return Finding("shadow stack", "ok", "not in use")


def runtime(facts: Facts) -> Finding:
    """Look which C library there is, which decides how threads count."""
    path = next((mapping.path for mapping in facts.mappings if LIBC.search(mapping.path)), None)
    if path is None:
        return Finding(
            "per-thread counters",
            "limited",
            "no C library is mapped (static or Go program): hits are counted by atomic operations",
            "exact too; a function that many threads call at once gets slower",
        )
    if "musl" in path:
        return Finding(
            "per-thread counters",
            "limited",
            "musl: hits are counted by atomic operations",
            "exact too; a function that many threads call at once gets slower",
        )
    version = glibc_version(f"/proc/{facts.pid}/root{path}")
    return Finding("per-thread counters", "ok", f"glibc {version or 'of unknown version'}")


def glibc_version(path: str) -> str | None:
    """Return the version that a glibc's banner names."""
    try:
        with open(path, "rb") as file:
            found = GLIBC_VERSION.search(file.read())
    except OSError:
        return None
    return found[1].decode() if found else None


def text(facts: Facts) -> Finding:
    """Look for code that cannot be spliced as a whole."""
    executable = [mapping for mapping in facts.mappings if mapping.executable and not mapping.path.startswith("[")]
    deleted = sorted({mapping.path for mapping in executable if mapping.deleted})
    fileless = [mapping for mapping in executable if not mapping.path]
    shared = sorted({mapping.path for mapping in executable if mapping.path and not mapping.private})
    parts = []
    if deleted:
        parts.append(f"deleted or replaced on disk: {', '.join(deleted)}")
    if fileless:
        parts.append(f"{len(fileless)} mappings of generated code")
    if shared:
        parts.append(f"shared: {', '.join(shared)}")
    if parts:
        remedy = "restart the program to probe what was replaced on disk" if deleted else ""
        return Finding("text", "limited", f"not probed: {'; '.join(parts)}", remedy)
    modules = len({mapping.path for mapping in executable})
    return Finding("text", "ok", f"private mappings of {modules} files")


def kernel_probes(facts: Facts) -> Finding:
    """Check whether the kernel has uprobes in the process: those that are set later ignore anyprobe's probes."""
    from anyprobe.splice.apply.uprobes import ADVICE, IN_USE, has_uprobes

    if has_uprobes(facts.mappings):
        return Finding("uprobes", "limited", f"{IN_USE}: {ADVICE}", "take the probes out before setting uprobes there")
    return Finding("uprobes", "ok", "none has been hit")


def namespaces(facts: Facts) -> Finding:
    """Check whether the process sees other files and pids than this one."""
    other = [
        kind
        for kind in ("mnt", "pid", "user")
        if permission.namespace(facts.pid, kind) != permission.namespace("self", kind)
    ]
    if other:
        return Finding(
            "namespaces", "ok", f"other than anyprobe's: {', '.join(other)}; files are read through /proc/PID/root"
        )
    return Finding("namespaces", "ok", "the same as anyprobe's")
