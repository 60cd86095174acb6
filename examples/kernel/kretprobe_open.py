"""A kretprobe on ``open`` that prints errors; it follows one call at once: kretprobe_open.py [SECONDS [MECHANISM]]."""

import sys
import time
from contextlib import suppress

from anyprobe import kernel, printf
from anyprobe.kprobes import Kprobe, Kretprobe, dmesg, register_kretprobe, regs_return_value


def on_return(ri, regs):
    if regs_return_value(regs) < 0:
        printf(f"sys_open returns {regs_return_value(regs)}")


with kernel(*sys.argv[2:], strict=True) as session, suppress(KeyboardInterrupt):
    rp = Kretprobe(kp=Kprobe(symbol_name="do_sys_openat2"), handler=on_return, maxactive=1)
    register_kretprobe(rp)
    print("Registered a return probe.", flush=True)
    time.sleep(float([*sys.argv, 5][1]))
print("\n".join(dmesg(session=session)[:12]) + "\n")
print(f"kretprobe unregistered\nMissed {rp.nmissed} sys_open probe instances.")
