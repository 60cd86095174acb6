"""What ``doctor`` asks of the machine and of the user: everything by looking, nothing by version numbers."""

import os
import platform
from collections.abc import Callable

from anyprobe.cli.doctor.finding import Finding
from anyprobe.core.errors import AnyprobeError
from anyprobe.target.process import permission
from anyprobe.target.system import procfs

Check = Callable[[], Finding]


_OWN_EVENTS = 2
"""The level of ``perf_event_paranoid`` up to which a thread may have events of its own, without the kernel's."""
_SAMPLING_REMEDY = "be root, or: sysctl kernel.perf_event_paranoid=2; in a container, permit perf_event_open"


def setting(path: str) -> str | None:
    """Return the content of a kernel setting, None where there is none."""
    try:
        return procfs.read_file(path).decode().strip()
    except OSError:
        return None


def cpu_facts() -> dict[str, str]:
    """Return the first processor's lines of ``/proc/cpuinfo``."""
    first = (setting("/proc/cpuinfo") or "").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def kernel() -> Finding:
    """Look at system and architecture."""
    detail = f"Linux {platform.release()} on {platform.machine()}"
    if platform.machine() != "x86_64":
        return Finding("kernel", "no", detail, "anyprobe knows x86-64 only")
    return Finding("kernel", "ok", detail)


def processor() -> Finding:
    """Look at the processor's maker and at what anyprobe uses of it."""
    facts = cpu_facts()
    flags = facts.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2", "avx", "sse2") if name in flags), "no vectors")
    return Finding(
        "processor", "ok", f"{facts.get('model name', 'unknown')} ({facts.get('vendor_id', '?')}, {vectors})"
    )


def time_stamp_counter() -> Finding:
    """Look whether ``rdtsc`` can time functions."""
    flags = cpu_facts().get("flags", "").split()
    source = setting("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    if "constant_tsc" in flags and "nonstop_tsc" in flags:
        return Finding("time stamp counter", "ok", f"invariant; the kernel's clock source is {source}")
    return Finding(
        "time stamp counter",
        "limited",
        f"not known to be invariant; the kernel's clock source is {source}",
        "time then reads clock_gettime, which costs more per call; count is not affected",
    )


def yama() -> Finding:
    """Look at Yama's restriction of ptrace."""
    scope = permission.yama_scope()
    if scope in (None, 0):
        return Finding("ptrace scope", "ok", "Yama does not restrict tracing")
    capable = permission.has_ptrace_capability(procfs.read_status(os.getpid()))
    if capable and scope != 3:
        return Finding("ptrace scope", "ok", f"kernel.yama.ptrace_scope is {scope}, and we have CAP_SYS_PTRACE")
    if scope == 1:
        return Finding(
            "ptrace scope",
            "limited",
            "kernel.yama.ptrace_scope is 1: only programs that anyprobe starts can be probed",
            "start it with 'anyprobe … -- COMMAND', use sudo, or: sysctl kernel.yama.ptrace_scope=0",
        )
    return Finding(
        "ptrace scope",
        "no",
        f"kernel.yama.ptrace_scope is {scope}",
        "use sudo" if scope == 2 else "boot with kernel.yama.ptrace_scope=0; it cannot be lowered at run time",
    )


def capabilities() -> Finding:
    """Look whether other users' processes can be traced."""
    own = procfs.read_status(os.getpid())
    if permission.has_ptrace_capability(own):
        if not permission.opens_files_of_others(own):
            lacking = f"uid {os.geteuid()} with CAP_SYS_PTRACE, but without CAP_DAC_OVERRIDE: one's own processes only"
            return Finding("privileges", "limited", lacking, "give CAP_DAC_OVERRIDE, too, for those of other users")
        return Finding("privileges", "ok", "CAP_SYS_PTRACE: processes of all users")
    return Finding(
        "privileges", "limited", f"uid {os.geteuid()}: one's own processes only", "use sudo for those of other users"
    )


def text_writes() -> Finding:
    """Look whether ``/proc/PID/mem`` writes to read-only text."""
    for word in (setting("/proc/cmdline") or "").split():
        if word.startswith("proc_mem.force_override=") and not word.endswith("=always"):
            return Finding(
                "text writes",
                "limited",
                f"booted with {word}: /proc/PID/mem does not write to text outside of a stop",
                "anyprobe falls back to PTRACE_POKETEXT, which is slower; boot without it for shorter pauses",
            )
    return Finding("text writes", "ok", "through /proc/PID/mem")


def executable_memory() -> Finding:
    """Look whether a memfd may be mapped executable."""
    value = setting("/proc/sys/vm/memfd_noexec")
    if value == "2":
        return Finding(
            "executable memory", "no", "vm.memfd_noexec is 2: no memfd may be executable", "sysctl vm.memfd_noexec=0"
        )
    return Finding(
        "executable memory", "ok", "a memfd may be executable" + (f" (vm.memfd_noexec={value})" if value else "")
    )


def mapping_limit() -> Finding:
    """Look how many mappings a process may have."""
    value = setting("/proc/sys/vm/max_map_count")
    if value is not None and int(value) < 65530:
        return Finding(
            "mappings",
            "limited",
            f"vm.max_map_count is {value}",
            "sysctl vm.max_map_count=65530, for many punned jumps",
        )
    return Finding("mappings", "ok", f"vm.max_map_count is {value}")


def sampling() -> Finding:
    """Look whether ``profile`` may sample programs."""
    from anyprobe.target.kernel.samples import permits

    level = f"kernel.perf_event_paranoid is {setting('/proc/sys/kernel/perf_event_paranoid') or 'not known'}"
    if permits(kernel=True):
        return Finding("sampling", "ok", "programs can be profiled, with their time in the kernel")
    if permits(kernel=False):
        detail = f"{level}: programs can be profiled, without their time in the kernel"
        return Finding("sampling", "ok", detail, "sysctl kernel.perf_event_paranoid=1, or be root, for that too")
    return Finding("sampling", "limited", f"{level}: no program can be profiled", _SAMPLING_REMEDY)


def processor_clock() -> Finding:
    """Look whether threads see by a perf event that they were not on a processor (``time --clock cpu``)."""
    level, permitted = setting("/proc/sys/kernel/perf_event_paranoid"), os.geteuid() == 0
    if level is not None and (permitted or int(level) <= _OWN_EVENTS):
        return Finding("clock cpu", "ok", "threads see by a perf event of their own that they were not on a processor")
    detail = (
        f"kernel.perf_event_paranoid is {level or 'not known'}: programs ask for their time at each reading (0.5 µs)"
    )
    return Finding("clock cpu", "limited", detail, "be root, or: sysctl kernel.perf_event_paranoid=2")


def shadow_stacks() -> Finding:
    """Look whether programs may run with shadow stacks."""
    if "user_shstk" in cpu_facts().get("flags", "").split():
        return Finding("shadow stacks", "ok", "supported here; programs that use them cannot be probed")
    return Finding("shadow stacks", "ok", "not supported by processor and kernel, so in no program's way")


CHECKS: tuple[Check, ...] = (
    kernel,
    processor,
    time_stamp_counter,
    yama,
    capabilities,
    text_writes,
    executable_memory,
    mapping_limit,
    sampling,
    processor_clock,
    shadow_stacks,
)


def findings(checks: tuple[Check, ...] = CHECKS) -> list[Finding]:
    """Return what each check found; one that cannot look says so instead of ending the report."""
    found = []
    for check in checks:
        try:
            found.append(check())
        except (OSError, ValueError, AnyprobeError) as error:
            found.append(Finding(check.__name__.replace("_", " "), "limited", f"cannot be looked at: {error}"))
    return found
