"""A Redis server of one's own, and work for it whose outcome is known."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from live.driver import wait_until

COMMANDS = "set,get,incr,lpush,zadd"
ADDING = "local s=0; for i=1,1000 do s=s+redis.call('incrby','k',i) end; return s"


class Redis:
    """A server that listens on a socket in a directory."""

    def __init__(self, process: "subprocess.Popen[bytes]", path: str) -> None:
        self.process, self.pid, self.path = process, process.pid, path

    def ask(self, *words: str) -> str:
        """Return the answer to one command."""
        command = ["redis-cli", "-s", self.path, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()

    def benchmark(self) -> None:
        """Run Redis's own benchmark, a script, and a save in a fork child; fail where an answer is wrong."""
        command = ["redis-benchmark", "-s", self.path, "-n", "5000", "-q", "-t", COMMANDS]
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=150)
        assert outcome.returncode == 0, outcome.stderr
        self.ask("del", "k")
        assert self.ask("eval", ADDING, "0") == "167167000"
        wait_until(lambda: self.ask("bgsave").startswith("Background saving started"), "redis saves in a child")
        assert self.ask("get", "k") == "500500"


@contextmanager
def redis(directory: Path, program: str = "redis-server") -> Iterator[Redis]:
    """Run a server for the length of a ``with`` block; at the end it is asked to stop, and must."""
    for needed in (program, "redis-benchmark", "redis-cli"):
        if not shutil.which(needed):
            pytest.skip(f"needs {needed}")
    path = str(directory / "redis.sock")
    command = [program, "--port", "0", "--unixsocket", path, "--save", "", "--dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _answers(path), "redis answers")
            server = Redis(process, path)
            yield server
            server.ask("shutdown", "nosave")
            assert process.wait(30) == 0
        finally:
            if process.poll() is None:
                process.kill()


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0
