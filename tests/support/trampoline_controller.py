"""The controller of controller.py, whose sessions replace return addresses in trampolines.c."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import controller

import anyprobe
from anyprobe.target.system import gateway

NAMES = "simple deep leaping forking switching parked threaded"
RETURNS = [f"a.out:{name}%return" for name in NAMES.split()]


def session(pid: int, plan: str, strategy: str = "auto") -> dict[str, object]:
    """Attach, count returns, time, remove and detach, with one call going wrong; return how it went."""
    answer: dict[str, object] = {"phase": "attach"}
    gateway.faults.install(None if plan == "none" else gateway.FaultPlan.parse(plan), log=True)
    try:
        with anyprobe.attach(pid, strategy=strategy, returns="trampoline") as running:
            answer["phase"] = "arm"
            probes = running.count(*RETURNS)
            running.time("a.out:deep", "a.out:threaded")
            answer["phase"] = "remove"
            running.remove(*probes[:2])
            answer["phase"] = "detach"
    except anyprobe.AnyprobeError as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    answer["calls"] = gateway.faults.calls
    return answer


if __name__ == "__main__":
    controller.session = session
    controller.main()
