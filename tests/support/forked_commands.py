"""Commands of tests, ``python -m anyprobe …``, by a fork of an interpreter that has imported what most commands need.

An interpreter takes 0.4 seconds of a processor to import anyprobe; the tests start some thousand. What a fork cannot
have as a command of its own would (another environment or user, a terminal, signals that are ignored or blocked) is
started as ever; so is everything in the torture, and what a test marks ``fresh``.
"""

import ctypes
import gc
import importlib
import io
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COMMANDS = ([sys.executable, "-m", "anyprobe"], [os.path.join(os.path.dirname(sys.executable), "anyprobe")])
USUAL = ["count", "libc:getppid", "--quiet", "-o", os.devnull, "--", "/bin/true"]
"""A command that imports what most do."""
PR_SET_CHILD_SUBREAPER = 36
OWN = "PYTEST_CURRENT_TEST"
"""What pytest changes in the environment for each test, and no command reads."""


class Forks:
    """An interpreter that forks; this process becomes the parent of what it starts."""

    def __init__(self) -> None:
        """Start the interpreter, which imports while this process goes on."""
        self.inherited = inherited()
        mine, its = socket.socketpair()
        self._channel = mine
        with its:
            command = [sys.executable, __file__, str(its.fileno())]
            self._interpreter = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
        self._answers = mine.makefile("r")
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl

    def start(self, words: list[str], folder: str, streams: list[int], new_session: bool, group: int) -> int:
        """Return the number of a new process, a child of this one, that runs a command."""
        request = {"words": words, "folder": folder, "new_session": new_session, "group": group}
        body = json.dumps(request).encode()
        # The fork's parent ends at once; then this process takes its place, and not that of any later orphan's.
        self._prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._channel, [len(body).to_bytes(4, "little")], streams)
            self._channel.sendall(body)
            return int(self._answers.readline())
        finally:
            self._prctl(PR_SET_CHILD_SUBREAPER, 0)

    def end(self) -> None:
        """End the interpreter."""
        self._answers.close()
        self._channel.close()
        self._interpreter.wait()


def environment(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name != OWN}


def inherited() -> list[Any]:
    """Return what a command has of the process that starts it, and a fork of the interpreter of that one's start."""
    limits = [resource.getrlimit(number) for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
    umask = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask"))
    return [
        environment(os.environ),
        limits,
        umask,
        os.sched_getaffinity(0),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.getresuid(),
    ]


class Switch:
    """Whether commands are forks at the moment, and the interpreter that is there for it."""

    wanted = False
    forks: Forks | None = None
    lock = threading.Lock()


def can_fork(words: Any, given: dict[str, Any]) -> bool:
    """Say whether a fork is what a command of its own would be."""
    if not Switch.wanted or arguments_of(words) is None:
        return False
    unusual = ("executable", "preexec_fn", "pass_fds", "shell")
    if any(given[name] for name in unusual) or not (given["close_fds"] and given["restore_signals"]):
        return False
    if (given["gid"], given["gids"], given["uid"], given["umask"]) != (None, None, None, -1):
        return False
    wanted = environment(os.environ if given["env"] is None else given["env"])
    now = inherited()
    if wanted != now[0] or (Switch.forks is not None and Switch.forks.inherited != now):
        return False
    if given["cwd"] is not None and not os.path.isdir(given["cwd"]):
        return False
    return not any(map(os.isatty, streams(given))) and not signals_are_changed()


def arguments_of(words: Any) -> list[str] | None:
    """Return the arguments of anyprobe; None if another program is started."""
    if isinstance(words, (list, tuple)) and all(isinstance(word, (str, os.PathLike)) for word in words):
        texts = [os.fspath(word) for word in words]
        for beginning in COMMANDS:
            if texts[: len(beginning)] == beginning:
                return texts[len(beginning) :]
    return None


def signals_are_changed() -> bool:
    """Say whether this process ignores or blocks what a command would inherit."""
    ignored = {each for each in signal.valid_signals() if signal.getsignal(each) == signal.SIG_IGN}
    return bool(ignored - {signal.SIGPIPE, signal.SIGXFSZ} or signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def streams(given: dict[str, Any]) -> list[int]:
    names = ("p2cread", "c2pwrite", "errwrite")
    return [place if given[name] == -1 else given[name] for place, name in enumerate(names)]


def install() -> None:
    """Have ``subprocess`` start commands as forks from now on, where ``Switch.wanted`` is true."""
    started_as_ever = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    names = started_as_ever.__code__.co_varnames[1 : started_as_ever.__code__.co_argcount]

    def _execute_child(self: Any, *values: Any) -> None:
        given = dict(zip(names, values, strict=True))
        if not can_fork(given["args"], given):
            started_as_ever(self, *values)
            return
        with Switch.lock:
            if Switch.forks is None:
                Switch.forks = Forks()
            words = arguments_of(given["args"]) or []
            folder = os.path.abspath(given["cwd"] or os.getcwd())
            group = -1 if given["process_group"] is None else given["process_group"]
            self.pid = Switch.forks.start(words, folder, streams(given), given["start_new_session"], group)
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in ends))

    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def uninstall() -> None:
    """End the interpreter, if there is one."""
    Switch.wanted = False
    if Switch.forks is not None:
        Switch.forks.end()
        Switch.forks = None


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each request; return in each fork what it is to run, and None when there are no more."""
    while True:
        size, descriptors, *_ = socket.recv_fds(channel, 4, 3)
        if not size:
            return None
        body = b""
        while len(body) < int.from_bytes(size, "little"):
            body += channel.recv(int.from_bytes(size, "little") - len(body))
        told, telling = os.pipe()
        between = os.fork()
        if not between:
            parent = os.getpid()
            child = os.fork()
            if child:
                os.write(telling, b"%d\n" % child)
                os._exit(0)
            while os.getppid() == parent:  # then it is a child of the process that has asked for it
                time.sleep(0.0002)
            return json.loads(body), descriptors
        os.waitpid(between, 0)
        channel.sendall(os.read(told, 20))
        for descriptor in (told, telling, *descriptors):
            os.close(descriptor)


def run(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be the command."""
    if request["new_session"]:
        os.setsid()
    if request["group"] >= 0:
        os.setpgid(0, request["group"])
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(request["folder"])
    sys.path.insert(0, request["folder"])
    sys.stdin = sys.__stdin__ = opened(0, "r")
    sys.stdout = sys.__stdout__ = opened(1, "w")
    sys.stderr = sys.__stderr__ = opened(2, "w")
    sys.argv = ["anyprobe", *request["words"]]
    runpy.run_module("anyprobe", run_name="__main__", alter_sys=True)


def opened(descriptor: int, mode: str) -> io.TextIOWrapper:
    """Open a stream as an interpreter does at its start."""
    old = (sys.stdin, sys.stdout, sys.stderr)[descriptor]
    unbuffered = mode == "w" and bool(os.environ.get("PYTHONUNBUFFERED"))
    binary: Any = open(descriptor, mode + "b", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    lines = descriptor == 2
    return io.TextIOWrapper(
        binary, encoding=old.encoding, errors=old.errors, line_buffering=lines, write_through=unbuffered
    )


def imported_by(arguments: list[str]) -> list[str]:
    """Return the modules that a command has imported at its end."""
    telling, told = os.pipe()
    if not os.fork():
        from anyprobe.cli import main as command

        sys.argv[1:] = arguments
        command()
        found = [name for name in sys.modules if name.split(".")[0] in ("anyprobe", "numpy", "iced_x86", "click")]
        os.write(told, "\n".join(found).encode())
        os._exit(0)
    os.close(told)
    with open(telling) as names:
        return names.read().split()


def main() -> None:
    del sys.path[0]  # the folder of this file
    for name in imported_by(USUAL):
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        found = serve(channel)
        if found is None:
            return
        channel.detach()
    run(*found)


if __name__ == "__main__":
    main()
