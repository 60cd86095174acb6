"""A controller that dies or meets failures on demand; started once, it forks for every session that is asked of it.

stdin, one request per line:  ``session PID PLAN [STRATEGY [SPEC...]]``  where PLAN is ``none`` or what
``FaultPlan.parse`` reads;  ``follow PID PLAN EXECUTIONS``  (counts, and follows so many executions, in which the call
goes wrong);  ``load PID PLAN LOADS [CHILDREN]``  (the same with libraries that are loaded, and children that are
relieved, or, with ``count``, load these themselves);  ``cli ARGUMENT...``;  ``hold PID SPEC...``  (armed until ``drop``
kills the holder).
stdout, one JSON object per answer: whether the forked child was ``killed``, the ``calls`` it made through the gateway,
``reached`` (whether the planned call came), ``phase`` and ``error``; without a plan also the ``classes`` of the calls:
those of one class do the same in the same phase.
"""

import contextlib
import importlib
import io
import json
import os
import pkgutil
import re
import sys
import time

from changes import stop_patiently  # beside this file

import anyprobe
from anyprobe.target.system import gateway

SPECS = ("a.out:work", "a.out:work%return", "a.out:leaf4", "a.out:side%return", "libc:getenv")
TIMED = "a.out:side"
DEADLINE = 100.0
"""Seconds that a request may take on a busy machine."""


def session(pid: int, plan: str, strategy: str = "auto", *specs: str) -> dict[str, object]:
    """Attach, count, time, read, remove and detach, with one call going wrong; return how it went.

    Where ``specs`` are given, they alone are counted, and nothing is timed.
    """
    answer: dict[str, object] = {"phase": "attach"}
    fault = None if plan == "none" or plan.startswith("kill-at") else gateway.FaultPlan.parse(plan)
    gateway.faults.install(fault, log=True)
    running = None
    try:
        with anyprobe.attach(pid, strategy=strategy) as running:
            answer["phase"] = "arm"
            probes = running.count(*(specs or SPECS))
            answer["phase"] = "time"
            if not specs:
                running.time(TIMED)
            answer["phase"] = "read"
            running.snapshot()
            answer["phase"] = "remove"
            running.remove(*probes[:2])
            answer["phase"] = "detach"
    except anyprobe.AnyprobeError as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    answer["warnings"] = list(running.warnings) if running is not None else []
    if fault is None:
        answer["classes"] = classes(gateway.faults.log or [])
    answer["calls"], answer["reached"] = gateway.faults.calls, gateway.faults.reached
    if fault and fault.call <= gateway.faults.calls:
        answer["what"] = (gateway.faults.log or [])[fault.call - 1]
    return answer


def following(pid: int, plan: str, executions: str) -> dict[str, object]:
    """Attach, count, and follow what is executed, with one call going wrong from then on; return how it went."""
    from anyprobe.probes.following.followed import Followed

    answer: dict[str, object] = {}
    fault = None if plan == "none" else gateway.FaultPlan.parse(plan)
    try:
        with Followed.attach([pid]) as tree:
            tree.count("a.out:work")
            gateway.faults.install(fault, log=True)
            deadline = time.monotonic() + patience(fault)
            while len(tree.snapshots()) <= int(executions) and time.monotonic() < deadline:
                time.sleep(0.01)
                tree.sweep()
            answer["calls"], answer["reached"] = gateway.faults.calls, gateway.faults.reached
            log = gateway.faults.log or []
            gateway.faults.clear()
            answer["hits"] = [each.hits for each in tree.snapshots()]
            answer["notes"] = tree.notes()
    except anyprobe.AnyprobeError as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    if fault is None:
        answer["classes"] = classes(log)
    return answer


def loading(pid: int, plan: str, loads: str, children: str = "free") -> dict[str, object]:
    """Attach, count in a library that is loaded again and again, with one call going wrong; fork children are freed.

    ``children``: ``count`` where they load the library themselves.
    """
    answer: dict[str, object] = {}
    fault = None if plan == "none" else gateway.FaultPlan.parse(plan)
    try:
        with anyprobe.attach(pid, children=children) as running:
            running.count("a.out:work")
            running.count("loaded*:plugin_work", follow=True)
            gateway.faults.install(fault, log=True)
            deadline = time.monotonic() + patience(fault)
            while hits_in(running, "plugin_work") < 10 * int(loads) and time.monotonic() < deadline:
                time.sleep(0.01)
            answer["calls"], answer["reached"] = gateway.faults.calls, gateway.faults.reached
            log = gateway.faults.log or []
            gateway.faults.clear()
            answer["hits"] = hits_in(running, "plugin_work")
        answer["notes"] = list(running.warnings)
    except anyprobe.AnyprobeError as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    if fault is None:
        answer["classes"] = classes(log)
    return answer


def patience(fault: gateway.FaultPlan | None) -> float:
    """Return for how many seconds what a program does is waited for; where a call has failed it may never come."""
    return 20.0 if fault else DEADLINE / 2


def hits_in(session: anyprobe.Session, function: str) -> int:
    """Return the hits of a function."""
    return sum(site.hits for site in session.snapshot().sites if site.function == function)


def classes(log: list[str]) -> list[int]:
    """Return a number for each call: which call, which request or file of a process, after which other call."""
    words = []
    for line in log:
        name, _, rest = line.partition("(")
        traces = name.startswith("ptrace")
        what = re.match(r"\d+" if traces else r"'/proc/[^']*'", rest)
        words.append(name + " " + ("" if not what else what[0] if traces else re.sub(r"\d+", "N", what[0])))
    numbers: dict[tuple[str, str], int] = {}
    return [numbers.setdefault(pair, len(numbers)) for pair in zip(["", *words], words, strict=False)]


def command(arguments: list[str]) -> dict[str, object]:
    """Run the command line in this process."""
    from anyprobe.cli import main

    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            sys.argv = ["anyprobe", *arguments]
            main()
        except SystemExit as end:
            status = end.code or 0
    return {"exit": status, "out": out.getvalue(), "err": err.getvalue()}


def forked(words: list[str], deadline: float) -> dict[str, object]:
    """Do one request in a child of ours, killed after ``deadline`` seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            if words[0] == "cli":
                answer = command(words[1:])
            else:
                answer = {"session": session, "follow": following, "load": loading}[words[0]](int(words[1]), *words[2:])
        except BaseException as error:
            answer = {"untyped": f"{type(error).__name__}: {error}"}
        os.write(writing, json.dumps(answer).encode()[:60000])
        os._exit(0)
    os.close(writing)
    if words[0] == "session" and words[2].startswith("kill-at:"):
        time.sleep(float(words[2].partition(":")[2]))
        os.kill(child, 9)
    with os.fdopen(reading, "rb") as pipe:
        content = wait_for(pipe, child, deadline)
    _, status = os.waitpid(child, 0)
    answer = json.loads(content) if content else {}
    answer["killed"] = os.WIFSIGNALED(status)
    return answer


def wait_for(pipe: io.BufferedReader, child: int, deadline: float) -> bytes:
    """Read a child's answer; a child that hangs is killed and says so."""
    import select

    if not select.select([pipe], [], [], deadline)[0]:
        os.kill(child, 9)
        return json.dumps({"untyped": f"no answer within {deadline} s"}).encode()
    return pipe.read()


def held(words: list[str]) -> tuple[int, dict[str, object]]:
    """Have a child of ours arm probes and wait; return it and what it counted so far."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        running = anyprobe.attach(int(words[1]))
        running.count(*words[2:])
        os.write(writing, json.dumps({"hits": running.snapshot().hits}).encode())
        os.close(writing)
        while True:
            time.sleep(60)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return child, json.loads(wait_for(pipe, child, DEADLINE) or "{}")


def dropped(child: int) -> dict[str, object]:
    """Kill the holder."""
    os.kill(child, 9)
    _, status = os.waitpid(child, 0)
    return {"killed": os.WIFSIGNALED(status)}


def import_everything() -> None:
    """Import all modules now, so that no forked child has to."""
    for module in pkgutil.walk_packages(anyprobe.__path__, "anyprobe."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def main() -> None:
    """Answer requests until the end of the input."""
    import_everything()
    stop_patiently()
    print("ready", flush=True)
    holder = 0
    for line in sys.stdin:
        words = line.split()
        if words[0] == "hold":
            holder, answer = held(words)
        elif words[0] == "drop":
            answer = dropped(holder)
        else:
            answer = forked(words, DEADLINE)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
