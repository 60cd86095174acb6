"""The line to the attendant of a program that probes itself, and the thread that speaks and listens on it."""

import ctypes
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from anyprobe.core.errors import TargetError, UnsupportedTarget
from anyprobe.data.layouts.layout import SLOTS
from anyprobe.probes.selfattach.channel import Channel, ChannelClosed, Failure, Request
from anyprobe.probes.selfattach.progress import Progress, await_with_progress
from anyprobe.probes.selfattach.sharing import Shared, SharedFile
from anyprobe.target.system import gateway

_TCB_SELF = 0x10
_START = """\
import os, sys, json
if os.fork(): os._exit(0)
descriptor, pid, sys.path[:] = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
from anyprobe.probes.selfattach.tracer import main
main(descriptor, pid)
"""
"""The attendant is no child of this program, which may wait for all its children."""


class Line:
    """The line to the attendant, and the thread that speaks and listens; it alone handles what is sent."""

    def __init__(self, progress: Progress | None = None) -> None:
        """Execute an attendant; ``progress`` is told of what takes long."""
        self._progress = progress
        self._asked: queue.SimpleQueue[tuple[Request | Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.closed = False
        near, theirs = socket.socketpair()
        complaints = os.memfd_create("attendant")  # which it writes to without waiting for anybody
        try:
            self._execute(theirs.fileno(), complaints)
        except BaseException:
            near.close()
            os.close(complaints)
            raise
        finally:
            theirs.close()
        self._channel = Channel(near)
        self.attendant = 0
        """The attendant's process id."""
        self.thread_pointer = 0
        self.files: list[SharedFile] = []
        """Memory that the attendant shares with us."""
        self.shared: list[Shared] = []
        """Storages in it that were not taken over yet."""
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="anyprobe", daemon=True)
        self._thread.start()
        try:
            started.result()
        except TargetError as error:
            raise TargetError(f"{error}{_last_line(complaints)}") from None
        finally:
            os.close(complaints)

    def _execute(self, descriptor: int, complaints: int) -> None:
        if not sys.executable:
            raise UnsupportedTarget("attach_self() executes a Python of its own, and sys.executable does not name one")
        path = [str(Path(__file__).parents[3]), *map(os.path.abspath, sys.path)]
        words = [str(descriptor), str(os.getpid()), json.dumps(path)]
        nowhere = subprocess.DEVNULL
        starter = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, *words],
            stdin=nowhere,
            stdout=nowhere,  # a pipe might be one that this program reads
            stderr=complaints,
            pass_fds=(descriptor,),
            start_new_session=True,  # Ctrl-C is not for it
        )
        starter.wait()

    def ask(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - the answer
        """Have the attendant do something and return its answer; raise what it raises."""
        answer: Future[Any] = Future()
        self._asked.put((Request(method, arguments), answer))
        if self.closed:
            self._refuse_all()
        if self._progress is not None:
            await_with_progress(answer, method, self._progress)
        return answer.result()

    def do(self, reading: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it returns
        """Have our thread do something, since it is not counted; the caller's does it if that thread has ended."""
        if self.closed:
            return reading()
        answer: Future[Any] = Future()
        self._asked.put((reading, answer))
        if self.closed:
            self._refuse_all()
        return answer.result()

    def close(self) -> None:
        """Hang up; the attendant ends."""
        self._asked.put(None)
        self._thread.join(10)

    def _run(self, started: "Future[None]") -> None:
        try:
            self.attendant = self._channel.receive()
            gateway.declare_tracer(self.attendant)
            self.thread_pointer = thread_pointer()
            self._channel.send(threading.get_native_id())
            started.set_result(None)
            while (asked := self._asked.get()) is not None:
                wanted, answer = asked
                if isinstance(wanted, Request):
                    self._pass_on(wanted, answer)
                else:
                    _perform(wanted, answer)
                del asked, wanted, answer
        except ChannelClosed:
            if not started.done():
                started.set_exception(TargetError("the attendant of attach_self() did not start"))
        finally:
            self._channel.close()
            self.closed = True
            gateway.declare_tracer(0)
            self._refuse_all()
            forget_slots()

    def _pass_on(self, request: Request, answer: "Future[Any]") -> None:
        try:
            self._channel.send(request)
            found = self._channel.receive()
        except ChannelClosed:
            self.closed = True  # before anybody is told so
            answer.set_exception(_gone())
            raise
        except BaseException as error:  # noqa: BLE001 - an argument that cannot be sent
            answer.set_exception(error)
            return
        # before the next request: a descriptor that is mapped nowhere is taken for one that was left behind
        self.files += map(SharedFile, self._channel.descriptors)
        self._channel.descriptors.clear()
        if isinstance(found, Failure):
            answer.set_exception(found.error())
        else:
            self.shared += found.shared
            answer.set_result(found.value)

    def _refuse_all(self) -> None:
        with suppress(queue.Empty):
            while True:
                asked = self._asked.get_nowait()
                if asked is not None and isinstance(asked[0], Request):
                    asked[1].set_exception(_gone())
                elif asked is not None:
                    _perform(asked[0], asked[1])  # type: ignore[arg-type] # a reading


def _perform(reading: Callable[[], Any], answer: "Future[Any]") -> None:
    try:
        answer.set_result(reading())
    except BaseException as error:  # noqa: BLE001 - the caller's
        answer.set_exception(error)


def _last_line(file: int) -> str:
    """Return how a program's complaint ends."""
    lines = os.pread(file, 1 << 16, 0).decode(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return f": {said[-1]}" if said else ""


def _gone() -> TargetError:
    return TargetError("the attendant of attach_self() has ended; close this session, which takes its probes out")


def thread_pointer() -> int:
    """Return this thread's pointer, which glibc gives as the thread's identity; 0 where it is something else."""
    pointer = threading.get_ident()
    return pointer if ctypes.c_uint64.from_address(pointer + _TCB_SELF).value == pointer else 0


def forget_slots() -> None:
    """Empty this thread's slots before it ends: the thread that gets its stack next is not to be left out."""
    pointer = thread_pointer()
    for slot in SLOTS if pointer else ():
        ctypes.c_uint64.from_address(pointer + slot).value = 0
