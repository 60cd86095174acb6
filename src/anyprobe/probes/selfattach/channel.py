"""Messages between a program that probes itself and its attendant: requests one way, one answer each back.

Over a pair of sockets that no other process has, so what comes is what the same code has packed.
"""

import importlib
import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anyprobe.core.errors import AnyprobeError, InternalError

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20
_DESCRIPTORS = 64
"""Open files that one message may bring."""


class ChannelClosed(Exception):  # noqa: N818 - an event
    """The other end is gone."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted: a method of the attendant, and its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method has returned, and what is shared from now on."""

    value: Any
    shared: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as it is sent: by name, since those of more than one argument do not survive pickling."""

    module: str
    name: str
    text: str
    state: bytes = b""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Pack an exception."""
        kind = type(error)
        try:
            state = pickle.dumps(error.__dict__)
        except Exception:  # noqa: BLE001 - whatever an object raises that cannot be packed
            state = b""
        return cls(kind.__module__, kind.__qualname__, str(error), state)

    def error(self) -> BaseException:
        """Return the exception, of the same type where that is one of anyprobe or a builtin."""
        if self.module.split(".")[0] not in {"anyprobe", "builtins"}:
            return InternalError(f"{self.module}.{self.name}: {self.text}")
        kind = getattr(importlib.import_module(self.module), self.name, None)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            return InternalError(f"{self.name}: {self.text}")
        if not issubclass(kind, AnyprobeError):
            return InternalError(f"{self.name}: {self.text}")
        error = kind.__new__(kind)
        Exception.__init__(error, self.text)
        if self.state:
            error.__dict__.update(pickle.loads(self.state))  # noqa: S301 - from our own attendant
        return error


class Channel:
    """One end."""

    def __init__(self, end: socket.socket) -> None:
        """Take over a socket."""
        self._socket = end
        self.descriptors: list[int] = []
        """Files that came with messages, for the receiver to take."""

    def fileno(self) -> int:
        """Return the descriptor, to be waited for."""
        return self._socket.fileno()

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send one message and open files; raise ``ChannelClosed`` if the other end is closed."""
        content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        length = _LENGTH.pack(len(content))
        try:
            # files travel with the first byte of the length
            sent = socket.send_fds(self._socket, [length], descriptors) if descriptors else 0
            self._socket.sendall(length[sent:])
            self._socket.sendall(content)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> Any:  # noqa: ANN401 - whatever was sent
        """Wait for one message and return it; raise ``ChannelClosed`` if none will come."""
        try:
            first, found, _, _ = socket.recv_fds(self._socket, _LENGTH.size, _DESCRIPTORS)
        except OSError as error:
            raise ChannelClosed from error
        if not first:
            raise ChannelClosed
        self.descriptors += found
        (size,) = _LENGTH.unpack(first + self._take(_LENGTH.size - len(first)))
        return pickle.loads(self._take(size))  # noqa: S301 - from our own other end

    def _take(self, size: int) -> bytes:
        content = bytearray(size)
        view, done = memoryview(content), 0
        while done < size:
            try:
                count = self._socket.recv_into(view[done : done + _CHUNK])
            except OSError as error:
                raise ChannelClosed from error
            if not count:
                raise ChannelClosed
            done += count
        return bytes(content)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
