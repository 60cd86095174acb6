"""A jprobe that prints each ``open`` anywhere, with path, flags and mode: jprobe_open.py [SECONDS [MECHANISM]]."""

import sys
import time
from contextlib import suppress

from anyprobe import cstr, kernel, printf
from anyprobe.kprobes import Jprobe, Kprobe, current, dmesg, jprobe_return, register_jprobe


def on_open(dfd, filename, how):
    printf(f"process '{current.comm}' call open('{cstr(filename, 120)}', {how.flags}, {how.mode})")
    jprobe_return()


with kernel(*sys.argv[2:], strict=True) as session, suppress(KeyboardInterrupt):
    register_jprobe(Jprobe(kp=Kprobe(symbol_name="do_sys_openat2"), entry=on_open))
    print("Registered a jprobe.", flush=True)
    time.sleep(float([*sys.argv, 5][1]))
print("\n".join(dmesg(session=session)))
print("jprobe unregistered")
