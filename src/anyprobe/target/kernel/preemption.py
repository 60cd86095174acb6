"""Whether threads in the kernel are preempted: then programs of some kinds meet themselves on a processor."""

import os

_REALTIME, _MODE, _COMMAND_LINE = "/sys/kernel/realtime", "/sys/kernel/debug/sched/preempt", "/proc/cmdline"


def is_preemptible(version: str | None = None) -> bool:
    """Return whether a thread may be preempted while it runs a program of BPF; ``version``: as uname has it.

    PREEMPT_RT and preempt=full are; with PREEMPT_DYNAMIC it is chosen at the start or later, as debugfs shows.
    """
    words = (os.uname().version if version is None else version).split()
    if _read(_REALTIME).strip() == "1" or "PREEMPT_RT" in words or "PREEMPT" in words:
        return True
    mode = _read(_MODE)
    if mode:
        return "(full)" in mode or "(lazy)" in mode
    return "preempt=full" in _read(_COMMAND_LINE).split()


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
