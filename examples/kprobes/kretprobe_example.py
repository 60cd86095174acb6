"""A kretprobe on ``open`` that prints errors only. It follows one call at a time, so that calls are missed under load.

``python examples/kprobes/kretprobe_example.py PID [SECONDS]``
"""

import sys
import time
from contextlib import suppress

import anyprobe
from anyprobe import i32, printf
from anyprobe.kprobes import Kprobe, Kretprobe, dmesg, register_kretprobe, regs_return_value, unregister_kretprobe

SHOWN = 12


def on_return(ri, regs):
    retval = i32(regs_return_value(regs))
    if retval < 0:
        printf(f"open returns {retval}")
    return 0


def main() -> None:
    """Watch for some seconds, or until Ctrl-C."""
    if not sys.argv[1:]:
        sys.exit(__doc__)
    pid, seconds = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
    with anyprobe.attach(pid, strict=True):
        rp = Kretprobe(kp=Kprobe(symbol_name="open", module="libc"), handler=on_return, maxactive=1)
        register_kretprobe(rp)
        print("Registered a return probe.", flush=True)
        with suppress(KeyboardInterrupt):
            time.sleep(seconds)
        missed = rp.nmissed
        unregister_kretprobe(rp)
        rows = dmesg(final=True)
    print("\n".join(rows[:SHOWN]))
    print("\nkretprobe unregistered")
    print(f"Missed {missed} open probe instances.")


if __name__ == "__main__":
    try:
        main()
    except anyprobe.AnyprobeError as error:
        sys.exit(f"{error}")
