"""The kernel's own notifications of executions: the process events of its connector, by netlink.

Needs CAP_NET_ADMIN in the first user namespace. (drivers/connector/cn_proc.c)
"""

import ctypes
import errno
import os
import select
import socket
import struct
from contextlib import suppress
from typing import Final

_CONNECTOR, _CN_IDX_PROC, _LISTEN, _IGNORE = 11, 1, 1, 2
_NLMSG_DONE, _HEAD, _TOLD = 3, 16 + 20, 16 + 20 + 16
"""Bytes of both headers, and where an event's own fields begin."""
_NONE, _EXEC = 0, 2
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_ROOM: Final = 16 << 20
"""Bytes of events that may wait to be read."""
_FIRST_PIDS = 0xEFFFFFFC
"""The inode of the first namespace of process ids."""
_ANSWER: Final = 1.0
"""Seconds in which the kernel has to say that it listens."""


class ProcEvents:
    """A socket to which the kernel writes who has executed a program."""

    def __init__(self) -> None:
        """Ask the kernel for them; raise ``OSError`` where it gives none."""
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
        """Have the kernel leave out all events but executions and its answer."""
        steps = (
            (0x20, 0, 0, _HEAD),  # ld [what]; loads are of the network's order
            (0x15, 1, 0, socket.htonl(_EXEC)),
            (0x15, 0, 1, _NONE),
            (0x06, 0, 0, 0xFFFFFFFF),
            (0x06, 0, 0, 0),
        )
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
        if not self.wait(seconds):
            return []
        found: list[int] = []
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
            if len(event) >= _TOLD + 8 and struct.unpack_from("<I", event, _HEAD)[0] == _EXEC:
                found.append(struct.unpack_from("<II", event, _TOLD)[1])

    def close(self) -> None:
        """Listen no more."""
        with suppress(OSError):
            self._send(_IGNORE)
        self._socket.close()
