"""System calls with time-outs that a stop meets: what the program sees of it."""

import subprocess
import time

import anyprobe
from support.driver import build

ENDS = {
    "nanosleep": "0 -",
    "clock_nanosleep": "0 -",
    "clock_nanosleep_until": "0 -",
    "poll": "0 -",
    "ppoll": "0 -",
    "select": "0 -",
    "pselect": "0 -",
    "epoll_wait": "0 -",
    "recv": "-1 EAGAIN",
    "semtimedop": "-1 EAGAIN",
    "sigtimedwait": "-1 EAGAIN",
    "mq_timedreceive": "-1 ETIMEDOUT",
    "futex": "-1 ETIMEDOUT",
    "futex_until": "-1 ETIMEDOUT",
    "cond_timedwait": "-1 ETIMEDOUT",
}
"""How each call ends by itself."""
ANEW = {"epoll_wait", "recv", "semtimedop", "sigtimedwait"}
"""Whose time begins anew."""
MILLISECONDS = 6000


def test_what_is_seen_of_stops():
    """Nothing ends early, or with EINTR; who was requeued looks at the first futex again, as after SIGSTOP."""
    with subprocess.Popen(
        [build("time_outs.c"), str(MILLISECONDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "all asleep\n"
        began, stops = time.monotonic(), 0
        with anyprobe.attach(process.pid) as session:
            for _ in range(3):
                probes = session.count("a.out:work")
                last = time.monotonic() - began
                session.remove(*probes)
                stops += 2
        output, _ = process.communicate("x")
    assert process.returncode == 0
    found = dict(line.split(" ", 1) for line in output.splitlines())
    rest = found.pop("rest")
    requeued = found.pop("requeued")
    assert stops == 6
    assert {name: each.rpartition(" ")[0] for name, each in found.items()} == ENDS
    passed = {name: int(each.rpartition(" ")[2]) for name, each in found.items()}
    assert all(each >= MILLISECONDS - 20 for each in passed.values())
    if rest == "written written":  # the stops came in time: the remainder tells
        assert all(passed[name] >= MILLISECONDS + 1000 * last - 20 for name in ANEW)
        assert requeued.startswith("-1 EAGAIN")
