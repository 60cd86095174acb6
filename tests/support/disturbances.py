"""What changes the kernel's own text while splices are in it: static keys, tracers, modules, processors, live patches.

``python disturbances.py`` does all of it in turns until its standard input ends, and prints how often.
"""

import contextlib
import itertools
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
SETTINGS = (
    "kernel/sched_schedstats", "kernel/timer_migration", "net/ipv4/tcp_timestamps", "net/core/netdev_tstamp_prequeue",
    "kernel/perf_event_max_sample_rate",
)  # fmt: skip
"""Of ``/proc/sys``: static keys stand behind them."""
EVENTS = "sched", "net", "sock", "tcp"
MODULES = "dummy", "ifb"
LIVE_PATCH = Path("/sys/kernel/livepatch/live_patch")
_SECONDS = 600
_numbers = itertools.count()


def set_to(path: Path, value: str) -> bool:
    """Set a file of the kernel's if there is one that can be set; return whether it was."""
    with contextlib.suppress(OSError):
        path.write_text(value)
        return True
    return False


def define(event: str) -> None:
    """Define or remove a kprobe of tracefs."""
    fd = os.open(TRACING / "kprobe_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, f"{event}\n".encode())
    finally:
        os.close(fd)


@contextmanager
def kprobes_at(*places: str) -> Iterator[list[str]]:
    """Have kprobes at places; yield those that the kernel takes."""
    names: dict[str, str] = {}
    try:
        for place in places:
            name = f"on{next(_numbers)}"
            with contextlib.suppress(OSError):
                define(f"p:anyprobe_test/{name} {place}")
                names[name] = place
                Path(TRACING, "events/anyprobe_test", name, "enable").write_text("1")
        yield list(names.values())
    finally:
        for name in names:
            set_to(Path(TRACING, "events/anyprobe_test", name, "enable"), "0")
            define(f"-:anyprobe_test/{name}")


def flip_keys(work: Callable[[], None] = lambda: None) -> int:
    """Flip static keys there and back, and work each time; return how often."""
    flipped = 0
    for name in SETTINGS:
        path = Path("/proc/sys", name)
        if path.exists():
            before = path.read_text().strip()
            for value in ("0", "1", "0", before):
                flipped += set_to(path, value)
                work()
    for events in EVENTS:
        path = TRACING / "events" / events / "enable"
        for value in "10" if path.exists() else "":
            flipped += set_to(path, value)
            work()
    return flipped


def trace_all(work: Callable[[], None] = lambda: None) -> int:
    """Trace all functions by each tracer, and work meanwhile; return how often."""
    tracer = TRACING / "current_tracer"
    try:
        for name in ("function", "function_graph"):
            tracer.write_text(name)
            work()
            tracer.write_text("nop")
    finally:
        tracer.write_text("nop")
    return 2


def reload_modules() -> int:
    """Load modules and unload them."""
    for module in MODULES:
        subprocess.run(["modprobe", module], check=True)
    for module in MODULES:
        subprocess.run(["modprobe", "-r", module], check=True)
    return len(MODULES)


def switch_processor() -> int:
    """Take a processor off and on, if there is a second one."""
    online = Path("/sys/devices/system/cpu/cpu1/online")
    return set_to(online, "0") + set_to(online, "1")


def settle(state: Path = LIVE_PATCH) -> None:
    """Wait until all tasks have come over to a live patch, or back."""
    transition = state / "transition"
    for _ in range(_SECONDS):
        try:
            if transition.read_text().strip() == "0":
                return
        except OSError:  # it is gone, or goes
            return
        time.sleep(0.1)
    raise AssertionError("tasks have not come over")


@contextmanager
def live_patched(module: Path) -> Iterator[None]:
    """Have a live patch in force."""
    subprocess.run(["insmod", module], check=True)
    try:
        settle()
        yield
    finally:
        (LIVE_PATCH / "enabled").write_text("0")
        settle()
        while subprocess.run(["rmmod", "live_patch"], check=False, capture_output=True).returncode:
            time.sleep(0.1)  # the kernel lets go of it a little later


@contextmanager
def going_on(live_patch: Path) -> Iterator[None]:
    """Have all of it done by another process until the end; raise what went wrong there."""
    command = [sys.executable, __file__, live_patch]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        told, _ = worker.communicate(timeout=_SECONDS)
        print(f"meanwhile: {told.strip()}")
    assert worker.returncode == 0


def _disturb(live_patch: Path) -> Counter[str]:
    """Do all until the standard input ends, once at least; return how often."""
    done: Counter[str] = Counter()
    while not done or not select.select([0], [], [], 0)[0]:
        done["keys"] += flip_keys()
        done["modules"] += reload_modules()
        done["processors"] += switch_processor()
        done["tracers"] += trace_all()
        if live_patch.exists():
            with live_patched(live_patch):
                done["live patches"] += 1
    return done


if __name__ == "__main__":
    print(dict(_disturb(Path(sys.argv[1]))))
