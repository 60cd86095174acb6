"""Dask: each worker of a cluster times native functions in itself, and the client asks all of them.

``client.register_plugin(anyprobe.dask.Plugin("libz:*"))``, then ``anyprobe.dask.snapshot(client)``.
"""

from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import UsageError

try:
    from distributed import WorkerPlugin
except ImportError:  # which is said when a plug-in is made
    WorkerPlugin = object

if TYPE_CHECKING:
    from anyprobe.data.snapshots.called import Called
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.probes.selfattach.session import SelfSession

NAME = "anyprobe"
"""What workers call the plug-in."""


class Plugin(WorkerPlugin):  # type: ignore[misc] # it has no types where it is not installed
    """Times native functions in each worker, those that come later too, until it is unregistered."""

    name = NAME

    def __init__(self, *specs: str, by_task: bool = False) -> None:
        """Time these functions.

        Args:
            specs: as for ``Session.time``; libraries that are loaded later are timed from then on.
            by_task: whether to tell tasks apart by the names of their keys; workers must have one thread each.
        """
        if WorkerPlugin is object:
            raise UsageError("a plug-in of Dask needs distributed: pip install 'anyprobe[dask]'")
        self.specs, self.by_task = specs, by_task
        self._session: SelfSession | None = None
        self._before: Snapshot | None = None
        self.tasks: dict[str, dict[str, Called]] = {}

    def setup(self, worker: Any) -> None:  # noqa: ANN401 - Dask's
        """Begin, in a worker."""
        from anyprobe.probes.selfattach.session import attach_self

        if self.by_task and worker.state.nthreads != 1:
            raise UsageError(f"by_task needs workers with one thread each; this one has {worker.state.nthreads}")
        self._session = attach_self()
        self._session.time(*self.specs, follow=True)

    def teardown(self, worker: Any) -> None:  # noqa: ANN401, ARG002 - Dask's
        """Take the probes out."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:  # noqa: ANN401 - Dask's
        """Note what a task has called: the next one begins after this."""
        if not self.by_task or self._session is None:
            return
        if finish == "executing":
            self._before = self._session.snapshot()
        elif start == "executing" and self._before is not None:
            from dask.utils import key_split

            from anyprobe.data.snapshots.called import add_calls, called_between

            add_calls(self.tasks.setdefault(key_split(key), {}), called_between(self._before, self._session.snapshot()))
            self._before = None

    def snapshot(self) -> "Snapshot":
        """Return what was counted in this worker."""
        if self._session is None:
            raise UsageError("the plug-in has been taken out of this worker")
        return self._session.snapshot()


def snapshots(client: Any) -> "dict[str, Snapshot]":  # noqa: ANN401 - Dask's
    """Return what was counted in each worker, by its address.

    Args:
        client: of the cluster.
    """
    found: dict[str, Snapshot] = client.run(_snapshot)
    return found


def snapshot(client: Any) -> "Snapshot":  # noqa: ANN401
    """Return what was counted in all workers together.

    Args:
        client: of the cluster.
    """
    from anyprobe.probes.group import merged

    return merged([each.distinct() for each in snapshots(client).values()])


def by_task(client: Any) -> "dict[str, list[Called]]":  # noqa: ANN401
    """Return what tasks have called in all workers, by the names of their keys, those with most time first.

    Args:
        client: of the cluster; its plug-in was made with ``by_task=True``.
    """
    from anyprobe.data.snapshots.called import add_calls, most_time_first

    sums: dict[str, dict[str, Called]] = {}
    for tasks in client.run(_tasks).values():
        for name, calls in tasks.items():
            add_calls(sums.setdefault(name, {}), calls.values())
    return {name: most_time_first(own.values()) for name, own in sums.items()}


def _snapshot(dask_worker: Any) -> "Snapshot":  # noqa: ANN401
    found: Snapshot = dask_worker.plugins[NAME].snapshot()
    return found


def _tasks(dask_worker: Any) -> "dict[str, dict[str, Called]]":  # noqa: ANN401
    found: dict[str, dict[str, Called]] = dask_worker.plugins[NAME].tasks
    return found
