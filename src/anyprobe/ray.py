"""Ray: tasks and methods of actors time native functions in their workers, and the driver asks for all of them.

``probes = anyprobe.ray.Probes("libz:*")``, ``@ray.remote`` above ``@probes.task``, then ``probes.snapshot()``.
"""

import functools
import inspect
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from anyprobe.core.errors import AnyprobeError, UsageError

if TYPE_CHECKING:
    from anyprobe.data.snapshots.called import Called
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.selfattach.session import SelfSession

P = ParamSpec("P")
R = TypeVar("R")
_BY_PIECES = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
SEVERAL = "several tasks at once"
"""The name of what tasks have called that ran beside others in one worker: it cannot be told whose it was."""


def _ray() -> Any:  # noqa: ANN401 - a module
    try:
        import ray
    except ImportError:
        raise UsageError("tasks of Ray need ray: pip install ray") from None
    return ray


class Probes:
    """Times native functions in each worker that runs one of the tasks, from then until the worker ends."""

    def __init__(self, *specs: str) -> None:
        """Time these functions; Ray has been begun (``ray.init()``).

        Args:
            specs: as for ``Session.time``; libraries that are loaded later are timed from then on.
        """
        self.specs = specs
        self._collector = _ray().remote(_Collector).options(num_cpus=0).remote()

    def task(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function, or a method of an actor's class, that is probed where it runs; below ``@ray.remote``.

        The driver has what was counted when it has the result. A worker that cannot be probed runs it all the same.

        Raises:
            UsageError: it is a coroutine or a generator, which runs by pieces, after it was called.
        """
        specs, collector = self.specs, self._collector
        name = function.__qualname__.rpartition("<locals>.")[2]
        if any(is_so(function) for is_so in _BY_PIECES):
            raise UsageError(f"{name} is a coroutine or a generator: have it call a task that is a plain function")

        @functools.wraps(function)
        def probed(*arguments: P.args, **settings: P.kwargs) -> R:
            return _WORKER.run(functools.partial(function, *arguments, **settings), name, specs, collector)

        return probed

    def snapshots(self) -> "dict[str, Snapshot]":
        """Return what was counted in each worker, by its node's id and its pid: also in those that have ended."""
        found: dict[str, Snapshot] = _ray().get(self._collector.snapshots.remote())
        return found

    def snapshot(self) -> "Snapshot":
        """Return what was counted in all workers together.

        Raises:
            UsageError: no task has run yet.
        """
        from anyprobe.probes.group import merged

        found = self.snapshots()
        if not found:
            raise UsageError("no task has run yet in a worker that is probed; failures() says why one is not")
        return merged([each.distinct() for each in found.values()])

    def by_task(self) -> "dict[str, list[Called]]":
        """Return what tasks have called in all workers, by the names of their functions, those with most time first."""
        from anyprobe.data.snapshots.called import most_time_first

        sums: dict[str, dict[str, Called]] = _ray().get(self._collector.tasks.remote())
        return {name: most_time_first(own.values()) for name, own in sums.items()}

    def failures(self) -> dict[str, str]:
        """Return why workers are not probed, by their node's id and pid: what runs there is in no sum."""
        found: dict[str, str] = _ray().get(self._collector.failures.remote())
        return found


class _Collector:
    """The actor that has the results of all workers."""

    def __init__(self) -> None:
        self._snapshots: dict[str, Snapshot] = {}
        self._tasks: dict[str, dict[str, Called]] = {}
        self._failures: dict[str, str] = {}

    def add(self, worker: str, name: str, calls: "list[Called]", snapshot: "Snapshot") -> None:
        """Take what a task has called, and all that was counted in its worker."""
        self._snapshots[worker] = snapshot
        from anyprobe.data.snapshots.called import add_calls

        add_calls(self._tasks.setdefault(name, {}), calls)

    def fail(self, worker: str, why: str) -> None:
        """Take note that a worker is not probed."""
        self._failures[worker] = why

    def snapshots(self) -> "dict[str, Snapshot]":
        """Return the last results of each worker."""
        return self._snapshots

    def tasks(self) -> "dict[str, dict[str, Called]]":
        """Return what tasks have called, by their names and by function."""
        return self._tasks

    def failures(self) -> dict[str, str]:
        """Return why workers are not probed."""
        return self._failures


def _send(method: Any, *arguments: object) -> None:  # noqa: ANN401 - of the collector
    """Tell the collector something; where it has ended, as with its driver, that is no failure of the task."""
    ray = _ray()
    with suppress(ray.exceptions.RayError):
        ray.get(method.remote(*arguments))


class _Worker:
    """The session in a worker, which all its tasks have together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: SelfSession | None = None
        self._specs: set[str] = set()
        self._running, self._begun = 0, 0
        self._before: Snapshot | None = None
        self._failed = False

    def __reduce__(self) -> tuple[Callable[[], "_Worker"], tuple[()]]:
        """Be that of the process where a task is sent to: functions of the main program are sent with their globals."""
        return _worker, ()

    def run(self, function: Callable[[], R], name: str, specs: tuple[str, ...], collector: Any) -> R:  # noqa: ANN401
        """Run a task, and tell what it has called."""
        worker = f"{_ray().get_runtime_context().get_node_id()}:{os.getpid()}"
        with self._lock:
            session = self._probed(worker, specs, collector)
            if not self._running:
                self._before, self._begun = self._seen(session, worker, collector), 0
            self._running += 1
            self._begun += 1
        try:
            return function()
        finally:
            with self._lock:
                self._running -= 1
                # of tasks that overlap, the last one to end tells what was called since the first one began
                before = None if self._running else self._before
                after = None if before is None else self._seen(session, worker, collector)
                if before is not None and after is not None:
                    from anyprobe.data.snapshots.called import called_between

                    told = name if self._begun == 1 else SEVERAL
                    _send(collector.add, worker, told, called_between(before, after), after)

    def _seen(self, session: "SelfSession | None", worker: str, collector: Any) -> "Snapshot | None":  # noqa: ANN401
        """Return what was counted by now; None, which is told, where that cannot be read any more."""
        try:
            return None if session is None else session.snapshot()
        except AnyprobeError as error:
            self._failed = True
            _send(collector.fail, worker, str(error))
            return None

    def _probed(self, worker: str, specs: tuple[str, ...], collector: Any) -> "SelfSession | None":  # noqa: ANN401
        """Return the session, in which these functions are timed; None where this worker cannot be probed."""
        if self._failed:
            return None
        try:
            if self._session is None:
                from anyprobe.probes.selfattach.session import attach_self

                self._session = attach_self()
            if new := [each for each in specs if each not in self._specs]:
                self._session.time(*new, follow=True)
                self._specs.update(new)
        except AnyprobeError as error:
            self._failed = True
            _send(collector.fail, worker, str(error))
            return None
        return self._session


_WORKER = _Worker()


def _worker() -> _Worker:
    return _WORKER
