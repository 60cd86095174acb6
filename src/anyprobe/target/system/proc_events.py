"""The kernel's own notifications of executions, forks and ends: the process events of its connector, by netlink.

Needs CAP_NET_ADMIN in the first user namespace. (drivers/connector/cn_proc.c)
"""

import ctypes
import errno
import os
import select
import socket
import struct
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

_CONNECTOR, _CN_IDX_PROC, _LISTEN, _IGNORE = 11, 1, 1, 2
_NLMSG_DONE, _HEAD, _TOLD = 3, 16 + 20, 16 + 20 + 16
"""Bytes of both headers, and where an event's own fields begin."""
_NONE, _FORK, _EXEC, _EXIT = 0, 1, 2, 1 << 31
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_ROOM: Final = 16 << 20
"""Bytes of events that may wait to be read."""
_FIRST_PIDS = 0xEFFFFFFC
"""The inode of the first namespace of process ids."""
_ANSWER: Final = 1.0
"""Seconds in which the kernel has to say that it listens."""


class Happened(Enum):
    """What a process has done."""

    FORKED = _FORK
    """It has come to be, made by another one."""
    EXECUTED = _EXEC
    ENDED = _EXIT


class ProcEvent(NamedTuple):
    """One notification."""

    what: Happened
    pid: int
    when: int
    """In nanoseconds of ``time.monotonic_ns``."""
    parent: int = 0
    """Which process has forked."""


class ProcEvents:
    """A socket to which the kernel writes who has executed a program, and, on demand, who was forked and has ended."""

    def __init__(self, *, lives: bool = False) -> None:
        """Ask the kernel for them; raise ``OSError`` where it gives none. ``lives``: forks and ends are wanted, too."""
        self._lives = lives
        if os.stat("/proc/self/ns/pid").st_ino != _FIRST_PIDS:
            raise OSError(errno.ENXIO, "ids are told as they are outside of this process's namespace")
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _CONNECTOR)
        self.overflows = 0
        """How often there was no room for what happened."""
        try:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM)
            self._filter()
            self._socket.bind((0, _CN_IDX_PROC))
            self._send(_LISTEN)
            self._see_answer()
        except OSError:
            self._socket.close()
            raise

    def _filter(self) -> None:
        """Have the kernel leave out all events but executions and its answer, and those of processes that are wanted.

        Forks and ends of threads, which are no processes, are left out.
        """
        accept, drop, load, alike = (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0), 0x20, 0x1D
        steps = [(load, 0, 0, _HEAD)]  # ld [what]; loads are of the network's order
        for kind in (_EXEC, _NONE):
            steps += [(0x15, 0, 1, socket.htonl(kind)), accept]
        for kind, at in ((_FORK, _TOLD + 8), (_EXIT, _TOLD)) if self._lives else ():
            same = [(load, 0, 0, at), (0x07, 0, 0, 0), (load, 0, 0, at + 4), (alike, 0, 1, 0), accept, drop]
            steps += [(0x15, 0, len(same), socket.htonl(kind)), *same]
        steps.append(drop)
        code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *each) for each in steps))
        program = struct.pack("@HP", len(steps), ctypes.addressof(code))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def _send(self, operation: int) -> None:
        told = struct.pack("<IIIIHHI", _CN_IDX_PROC, 1, 0, 0, 4, 0, operation)
        self._socket.send(struct.pack("<IHHII", 16 + len(told), _NLMSG_DONE, 0, 0, os.getpid()) + told)

    def _see_answer(self) -> None:
        while select.select([self._socket], [], [], _ANSWER)[0]:
            event = self._socket.recv(4096)
            if len(event) >= _TOLD + 4 and struct.unpack_from("<I", event, _HEAD)[0] == _NONE:
                failure: int = struct.unpack_from("<I", event, _TOLD)[0]
                if failure:
                    raise OSError(failure, os.strerror(failure))
                return
        raise OSError(errno.ETIMEDOUT, "the kernel does not answer")

    def wait(self, seconds: float) -> bool:
        """Return whether there is something to be read, as soon as there is."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def read(self, seconds: float) -> list[int]:
        """Return the processes that have executed a program, in their order, as soon as there are any."""
        return [each.pid for each in self.events(seconds) if each.what is Happened.EXECUTED]

    def events(self, seconds: float) -> list[ProcEvent]:
        """Return what has happened, in its order, as soon as there is anything."""
        if not self.wait(seconds):
            return []
        found: list[ProcEvent] = []
        while True:
            try:
                event = self._socket.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    raise
                self.overflows += 1
                continue
            if len(event) < _TOLD + 8:
                continue
            what, _, when = struct.unpack_from("<IIQ", event, _HEAD)
            if what == _FORK and len(event) >= _TOLD + 16:
                _, parent, _, pid = struct.unpack_from("<IIII", event, _TOLD)
                found.append(ProcEvent(Happened.FORKED, pid, when, parent))
            elif what in {_EXEC, _EXIT}:
                found.append(ProcEvent(Happened(what), struct.unpack_from("<II", event, _TOLD)[1], when))

    def close(self) -> None:
        """Listen no more."""
        with suppress(OSError):
            self._send(_IGNORE)
        self._socket.close()
