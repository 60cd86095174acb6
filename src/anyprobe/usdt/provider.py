"""Markers of a Python program: functions that tools can listen to by name, next to free until one does."""

import ctypes
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from anyprobe.core.closing import Closing
from anyprobe.core.errors import UsageError
from anyprobe.usdt.limits import LONGEST_NAME, LONGEST_PROVIDER
from anyprobe.usdt.markerfile import MarkerFile, written
from anyprobe.usdt.passing import Passed, passed
from anyprobe.usdt.sharedobject import NotedMarker, shared_object

_PROVIDER, _NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII), re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_log = logging.getLogger("anyprobe.usdt")
_taken: "dict[str, Provider]" = {}
_lock = threading.RLock()
# A fork child has one thread; a lock that another one held at the fork would stay held in it.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class FireProbe(Protocol):
    """What fires a probe: a function with a parameter for each of the probe's arguments."""

    def __call__(self, *values: Any) -> None:  # noqa: ANN401 - what the probe's types take
        """Fire the probe, if a tool listens."""

    def enabled(self) -> bool:
        """Return whether a tool listens, for values that take time to compute."""


class Provider(Closing):
    """A provider of USDT probes in this process, which anyprobe, bpftrace, perf and gdb can see.

    A probe's function costs about as much as an empty Python function until a tool listens. A value that is not of
    the probe's type never raises: a program must not fail for being looked at. It is passed as 0, and logged once.
    """

    def __init__(self, name: str, *, strict: bool = False) -> None:
        """Take a name that no other provider of the process has.

        Args:
            name: the provider's name in specs: letters, digits and underscores.
            strict: look at each call's values, whether or not a tool listens, and raise ``TypeError``: for tests.

        Raises:
            UsageError: the name is too long, is no name, or is taken.
        """
        _check_name("provider", name, _PROVIDER, LONGEST_PROVIDER)
        self.name, self.strict = name, strict
        self._files: list[MarkerFile] = []
        self._names: set[str] = set()
        with _lock:
            if name in _taken:
                raise UsageError(f"this process has a USDT provider {name!r} already; use it, or close it first")
            _taken[name] = self

    def probe(self, name: str, *types: Any) -> FireProbe:  # noqa: ANN401 - types of handlers and of Python
        """Make a probe, visible from now on; the function that is returned fires it.

        Args:
            name: the probe's name; a dash is written as two underscores, as in DTrace.
            *types: the types of its arguments, 12 at most: ``u8`` to ``i64``, ``f32``, ``f64``, ``ptr``, ``cstr``, or
                Python's ``int``, ``float``, ``bool``, ``str``, ``bytes``.

        Raises:
            UsageError: a name or a type is wrong, or the provider has a probe of this name.
        """
        return self.probes({name: types})[name]

    def probes(self, wanted: Mapping[str, Sequence[Any]]) -> dict[str, FireProbe]:
        """Make several probes at once, in one file; ``wanted`` has the types of each."""
        if not wanted:
            return {}
        noted, how = [], {}
        for name, types in wanted.items():
            _check_name("probe", name, _NAME, LONGEST_NAME)
            how[name] = passed(f"{self.name}:{name}", types)
            arguments = " ".join(each.operand for each in how[name])
            noted.append(NotedMarker(self.name, name.replace("-", "__"), arguments))
        with _lock:
            self._take([each.name for each in noted])
            number = len(self._files) + 1
            file_name = f"{self.name}.so" if number == 1 else f"{self.name}-{number}.so"
            loaded: list[ctypes.PyDLL] = []
            try:
                self._files.append(
                    written(file_name, shared_object(file_name, noted), lambda path: loaded.append(ctypes.PyDLL(path)))
                )
            except BaseException:
                self._names.difference_update(each.name for each in noted)
                raise
        return {
            name: _function(self, marker, how[name], loaded[0])
            for name, marker in zip(wanted, noted, strict=True)
        }  # fmt: skip

    def close(self) -> None:
        """Take the probes away from tools that look for them from now on; their functions do no harm.

        At the end of the process that is done anyhow. What is loaded stays loaded: another thread may be in it.
        """
        with _lock:
            if _taken.get(self.name) is self:
                del _taken[self.name]
            for each in self._files:
                each.remove()
            self._files.clear()

    def _take(self, names: Sequence[str]) -> None:
        if _taken.get(self.name) is not self:
            raise UsageError(f"the USDT provider {self.name!r} is closed")
        for each in names:
            if each in self._names or names.count(each) > 1:
                raise UsageError(f"{self.name} has a probe {each!r} already")
        self._names.update(names)


def _check_name(what: str, name: str, allowed: re.Pattern[str], longest: int) -> None:
    if not isinstance(name, str) or not allowed.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a {what}: letters, digits and underscores, and no digit first")
    if len(name.replace("-", "__")) > longest:
        raise UsageError(f"the {what}'s name {name!r} is too long: tools take {longest} characters")


def _function(provider: Provider, marker: NotedMarker, how: Sequence[Passed], loaded: ctypes.PyDLL) -> FireProbe:
    """Return what fires a marker."""
    call = getattr(loaded, marker.function)
    call.argtypes, call.restype = [each.c_type for each in how], None
    guard = memoryview(ctypes.c_uint16.in_dll(loaded, marker.semaphore)).cast("B").cast("H")
    shown = f"{provider.name}:{marker.name}"
    fire: Any = _firing(len(how), strict=provider.strict)(guard, _sender(shown, how, call), _checker(shown, how))
    fire.__name__ = fire.__qualname__ = marker.name
    fire.enabled = lambda: guard[0] != 0
    made: FireProbe = fire
    return made


def _firing(arguments: int, *, strict: bool) -> Callable[..., Any]:
    """Return what makes the function for a number of arguments.

    Its text has a parameter for each of them: Python checks their number, and makes no tuple when no tool listens.
    """
    names = "".join(f"arg{index}, " for index in range(arguments))
    check = f"check({names})\n        " if strict else ""
    text = f"""
def make(guard, send, check):
    def fire({names}{"/" if arguments else ""}):
        {check}if guard[0]:
            send({names})
    return fire
"""
    scope: dict[str, Any] = {}
    exec(text, scope)  # noqa: S102 - of a number and a flag
    made: Callable[..., Any] = scope["make"]
    return made


def _sender(shown: str, how: Sequence[Passed], call: Callable[..., None]) -> Callable[..., None]:
    """Return what converts values and calls the marker, for a listener."""
    said = [False] * len(how)

    def send(*values: Any) -> None:  # noqa: ANN401
        converted = []
        for index, (value, each) in enumerate(zip(values, how, strict=True)):
            try:
                converted.append(each.convert(value))
            except Exception as error:  # noqa: BLE001 - a value's own conversion may raise whatever it likes
                converted.append(each.convert(each.otherwise))
                if not said[index]:
                    said[index] = True
                    _log.warning("%s: argument %d is passed as 0: %s", shown, index, error)
        call(*converted)

    return send


def _checker(shown: str, how: Sequence[Passed]) -> Callable[..., None]:
    """Return what raises for values that are not of their types."""

    def check(*values: Any) -> None:  # noqa: ANN401
        for index, (value, each) in enumerate(zip(values, how, strict=True)):
            try:
                each.convert(value)
            except Exception as error:
                raise TypeError(f"{shown}: argument {index}: {error}") from error

    return check
