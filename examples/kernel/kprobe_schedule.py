"""A kprobe on ``schedule`` with handlers before and behind, and a count: kprobe_schedule.py [SECONDS [MECHANISM]]."""

import sys
import time
from contextlib import suppress

from anyprobe import kernel, printf
from anyprobe.kprobes import Kprobe, current, dmesg, register_kprobe, smp_processor_id


def before(p, regs):
    printf(f"current task on CPU#{smp_processor_id()}: {current.comm} (before scheduling), pid = {current.pid}")


def behind(p, regs, flags):
    printf(f"current task on CPU#{smp_processor_id()}: {current.comm} (after scheduling), pid = {current.pid}")


with kernel(*sys.argv[2:], strict=True) as session, suppress(KeyboardInterrupt):
    register_kprobe(kp := Kprobe(symbol_name="schedule", pre_handler=before, post_handler=behind))
    print("kprobe registered", flush=True)
    time.sleep(float([*sys.argv, 5][1]))
print("\n".join(dmesg(session=session)[:9]) + "\n")
print(f"Scheduling times is {kp.hits} during of {session.snapshot().duration_s * 1000:.0f} milliseconds.")
print("kprobe unregistered")
