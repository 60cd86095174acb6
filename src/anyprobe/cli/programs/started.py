"""A command that is started and not probed: it only does what probes in the kernel see."""

from collections.abc import Sequence

from anyprobe.core.closing import Closing
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.target.process.launch import launch


class Unprobed(Closing):
    """The command, held before its first instruction; leaving it as a context manager lets it run on."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Start it, in a process group of its own."""
        self._process = launch(list(argv), process_group=0)
        self.pid = self._process.pid

    def close(self) -> None:
        """Let it go, if that was not done yet."""
        self._process.close()

    @property
    def exited(self) -> bool:
        """Whether it has ended."""
        return self._process.exited()

    def resume(self) -> None:
        """Let it go."""
        self._process.resume()

    def wait(self, timeout: float) -> int | None:
        """Wait for its end, for some seconds at most; return its wait status if it has ended."""
        return self._process.wait(timeout)

    @property
    def target_info(self) -> TargetInfo:
        """What is known of it, and whether it has ended."""
        exited = self.exited
        return TargetInfo(self.pid, "", self._process.exit_status, alive=not exited)

    def snapshot(self) -> Snapshot:
        """Return what is known of it, and nothing else."""
        return Snapshot(self.target_info, 0.0)
