"""What ``doctor --kernel`` asks of the running kernel: what it says of itself, then what it does when it is tried."""

import os
from collections.abc import Sequence

from anyprobe.cli.doctor.finding import Finding, Verdict
from anyprobe.cli.doctor.machine_checks import Check, setting
from anyprobe.cli.doctor.machine_checks import findings as found_by
from anyprobe.core.errors import TargetError
from anyprobe.probes.providers.kernel import trials
from anyprobe.probes.providers.kernel.trials import Trial
from anyprobe.target.kernel import btf, preemption, switches, symbols, tracefs

_INSTEAD = {
    trials.HANDLERS: "the rest of what handlers can do is there",
    trials.PROGRAMS: "processes that one may trace are probed all the same: anyprobe doctor -p PID",
}
_OPTIONS = {
    "fentry": "DEBUG_INFO_BTF", "fexit": "DEBUG_INFO_BTF", "tp_btf": "DEBUG_INFO_BTF",
    "kprobe.multi": "FPROBE", "kretprobe.multi": "FPROBE",
    "kprobe": "KPROBES", "kretprobe": "KPROBES", "uprobe": "UPROBES",
    "timers": "PERF_EVENTS", "software events": "PERF_EVENTS", "error injection": "BPF_KPROBE_OVERRIDE",
}  # fmt: skip
"""With which options a kernel is built that has these."""
_LOCKED = frozenset({"kprobe", "kretprobe", "tracepoint", "memory of the kernel"})
"""What a kernel that is locked down for confidentiality refuses."""
_PRIVILEGED = "use sudo, or have CAP_BPF and CAP_PERFMON"
_OF_KPROBES = frozenset({"kprobe", "kretprobe"})


def privileges() -> Finding:
    """Look at the capabilities that loading and attaching take."""
    name = "privileges"
    wanted = {"CAP_BPF": switches.CAP_BPF, "CAP_PERFMON": switches.CAP_PERFMON}
    lacking = [each for each, number in wanted.items() if not switches.has_capability(number)]
    if not lacking:
        return Finding(name, "ok", "CAP_BPF and CAP_PERFMON")
    values = [f"kernel.unprivileged_bpf_disabled={setting('/proc/sys/kernel/unprivileged_bpf_disabled') or '?'}"]
    values.append(f"kernel.perf_event_paranoid={setting('/proc/sys/kernel/perf_event_paranoid') or '?'}")
    detail = f"uid {os.geteuid()} lacks {' and '.join(lacking)} ({', '.join(values)})"
    return Finding(name, "no", detail, _PRIVILEGED)


def lockdown() -> Finding:
    """Look whether the kernel is locked down."""
    mode = switches.lockdown()
    if mode == "none":
        return Finding("lockdown", "ok", "none")
    detail = f"{mode}: " + (
        "programs may not read the kernel's memory" if mode == "confidentiality" else "nothing may write to the kernel"
    )
    return Finding("lockdown", "limited", detail, "boot without lockdown= and secure boot")


def types() -> Finding:
    """Look whether the kernel tells its types."""
    try:
        btf.running().kernel.function("getpid")
    except TargetError as failure:
        remedy = "parameters are by register then, and fentry is not possible; a kernel with CONFIG_DEBUG_INFO_BTF"
        return Finding("types (BTF)", "limited", str(failure), remedy)
    modules = sum(name != symbols.KERNEL for name in os.listdir("/sys/kernel/btf"))
    return Finding("types (BTF)", "ok", f"of the kernel, and of {modules} modules")


def functions() -> Finding:
    """Look whether the kernel tells where its functions are."""
    count = len(symbols.running().names())
    return Finding("functions", "ok", f"{count:,} names in /proc/kallsyms")


def file_systems() -> Finding:
    """Look whether tracefs and debugfs are mounted."""
    try:
        where = tracefs.root()
    except TargetError:
        remedy = "mount -t tracefs tracefs /sys/kernel/tracing; tracepoints by raw_tp are possible without"
        detail = "not mounted, or not to be read"
        if switches.lockdown() == "confidentiality":
            detail += f", since the kernel is locked down ({switches.lockdown()})"
        return Finding("tracefs", "limited", detail, remedy)
    if switches.ARMED.read() is None:
        remedy = "mount -t debugfs debugfs /sys/kernel/debug"
        return Finding("tracefs", "limited", f"{where}; but the kernel's list of kprobes is not readable", remedy)
    return Finding("tracefs", "ok", f"{where}, and debugfs")


def kprobes_switch() -> Finding:
    """Look whether kprobes are armed."""
    name = "kprobes switch"
    armed = switches.ARMED.read()
    if armed is None:
        return Finding(name, "limited", f"{switches.ARMED.path} is not readable", switches.ARMED.remedy)
    if not armed:
        detail = f"off ({switches.ARMED.path}): kprobes are set, and none is hit"
        return Finding(name, "limited", detail, "anyprobe enable --kernel --all")
    return Finding(name, "ok", "on")


def kprobes_optimization() -> Finding:
    """Look whether kprobes inside functions are reached by jumps."""
    name = "kprobes optimization"
    found = switches.OPTIMIZATION.read()
    if found is None:
        return Finding(name, "limited", "none: kprobes inside functions trap", switches.OPTIMIZATION.remedy)
    if not found:
        detail = "off (debug.kprobes-optimization): kprobes inside functions trap"
        return Finding(name, "limited", detail, "anyprobe optimize on --kernel")
    return Finding(name, "ok", "on: kprobes inside functions are reached by jumps where that is possible")


def preemptible() -> Finding:
    """Look whether programs at fentry can be preempted, and miss hits."""
    if preemption.is_preemptible():
        detail = "threads are preempted in the kernel: fentry misses hits then, so kprobes come first"
        return Finding("preemption", "ok", detail)
    return Finding("preemption", "ok", "threads are not preempted in the kernel, so fentry misses nothing")


CHECKS: tuple[Check, ...] = (
    privileges, lockdown, types, functions, file_systems, kprobes_switch, kprobes_optimization, preemptible,
)  # fmt: skip


def findings() -> list[Finding]:
    """Return what the kernel says, and what came of each trial."""
    return [*found_by(CHECKS), *judged(list(trials.all_trials()))]


def judged(made: Sequence[Trial]) -> list[Finding]:
    """Return a finding for each trial; what fails is worse where nothing else does the same."""
    return [_judged(each, [one.name for one in made if one.at == each.at and one.works]) for each in made]


def _judged(trial: Trial, others: Sequence[str]) -> Finding:
    if trial.works:
        seen = f"works: {trial.made} of {trial.made} hits" if trial.made > 1 else "works"
        return Finding(trial.name, "ok", f"{seen} ({trial.at})")
    detail = "; ".join(filter(None, [_problem(trial), _reason(trial)]))
    lacking = _is_forbidden(trial) and "be root" not in trial.problem and privileges().verdict == "no"
    remedies = [_PRIVILEGED] if lacking else []
    if trial.at in _INSTEAD or others:
        remedies.append(_INSTEAD.get(trial.at) or f"works still for {trial.at}: {', '.join(others)}")
    verdict: Verdict = "limited" if trial.at in _INSTEAD or others else "no"
    return Finding(trial.name, verdict, detail, "; ".join(remedies))


def _problem(trial: Trial) -> str:
    if trial.problem:
        return trial.problem
    seen = f"{trial.hits} of {trial.made} hits were seen"
    off = trial.name in _OF_KPROBES and switches.ARMED.read() is False
    return f"{seen}: kprobes are switched off" if off else seen


def _is_forbidden(trial: Trial) -> bool:
    return trial.denied or "(EPERM)" in trial.problem or "(EACCES)" in trial.problem


def _reason(trial: Trial) -> str:
    """Return the cause of a problem, as far as that can be told and is not said yet."""
    if _is_forbidden(trial) and privileges().verdict == "no":
        return ""
    if trial.problem and trial.name in _LOCKED and switches.lockdown() == "confidentiality":
        return f"the kernel is locked down ({switches.lockdown()})"
    if _is_forbidden(trial):
        return "this user has the privileges, so a security module forbids it, or this kernel's maker"
    option, known = _OPTIONS.get(trial.name), switches.configuration()
    if not trial.problem or option is None or option in known or "built without" in trial.problem:
        return ""
    return f"the kernel {'was' if known else 'seems to be'} built without CONFIG_{option}"
