"""A jprobe that prints each ``open`` with its path and flags. Reading the path is safe; in the kernel it was not.

``python examples/kprobes/jprobe_example.py PID [SECONDS]``
"""

import sys
import time
from contextlib import suppress

import anyprobe
from anyprobe import cstr, i32, printf, ptr
from anyprobe.kprobes import Jprobe, Kprobe, current, dmesg, jprobe_return, register_jprobe, unregister_jprobe


def on_open(pathname: ptr, flags: i32, mode: i32):
    printf(f"process '{current.comm}' call open('{cstr(pathname, 120)}', {flags}, {mode})")
    jprobe_return()


def main() -> None:
    """Watch for some seconds, or until Ctrl-C."""
    if not sys.argv[1:]:
        sys.exit(__doc__)
    pid, seconds = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
    with anyprobe.attach(pid, strict=True):
        jp = Jprobe(kp=Kprobe(symbol_name="open", module="libc"), entry=on_open)
        register_jprobe(jp)
        print("Registered a jprobe.", flush=True)
        with suppress(KeyboardInterrupt):
            time.sleep(seconds)
        unregister_jprobe(jp)
        print("\n".join(dmesg(final=True)))
    print("jprobe unregistered")


if __name__ == "__main__":
    try:
        main()
    except anyprobe.AnyprobeError as error:
        sys.exit(f"{error}")
