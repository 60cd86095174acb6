"""A kprobe with handlers before and behind an instruction, and a count at the end.

``python examples/kprobes/kprobe_example.py PID [SECONDS]`` watches where a program gives up its processor.
"""

import sys
import time
from contextlib import suppress

import anyprobe
from anyprobe import Count, printf
from anyprobe.kprobes import Kprobe, current, dmesg, register_kprobe, smp_processor_id, unregister_kprobe

schedules = Count("schedules")
SHOWN = 10


def before(p, regs):
    printf(f"current task on CPU#{smp_processor_id()}: {current.comm} (before scheduling), pid = {current.pid}")
    schedules.add()
    return 0


def behind(p, regs, flags):
    printf(f"current task on CPU#{smp_processor_id()}: {current.comm} (after scheduling), pid = {current.pid}")


def main() -> None:
    """Watch for some seconds, or until Ctrl-C."""
    if not sys.argv[1:]:
        sys.exit(__doc__)
    pid, seconds = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
    with anyprobe.attach(pid, strict=True):
        kp = Kprobe(symbol_name="sched_yield", pre_handler=before, post_handler=behind)
        begin = time.monotonic()
        register_kprobe(kp)
        print("kprobe registered", flush=True)
        with suppress(KeyboardInterrupt):
            time.sleep(seconds)
        unregister_kprobe(kp)
        milliseconds = round((time.monotonic() - begin) * 1000)
        rows = dmesg(final=True)
    print("\n".join(rows[:SHOWN]))
    print(f"\nScheduling times is {schedules.result().total.count} during of {milliseconds} milliseconds.")
    print("kprobe unregistered")


if __name__ == "__main__":
    try:
        main()
    except anyprobe.AnyprobeError as error:
        sys.exit(f"{error}")
