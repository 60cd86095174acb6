"""A Redis server of one's own, and work for it whose outcome is known."""

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import anyprobe
from support.driver import wait_until

COMMANDS = "set,get,incr,lpush,zadd"
ADDING = "local s=0; for i=1,1000 do s=s+redis.call('incrby','k',i) end; return s"
ALL_TYPES = """
local c, found = redis.call, {}
for i = 1, 600 do
  local n = i * 7919 % 1000
  c('rpush', 'list', n); c('sadd', 'set', n % 331, 'm' .. n % 77); c('hset', 'hash', 'f' .. i % 90, i * i)
  c('zadd', 'scores', n / 8, 'm' .. i % 400); c('append', 'text', i); c('pfadd', 'seen', n)
  c('setbit', 'bits', i * i, 1); c('xadd', 'stream', i .. '-1', 'n', n); c('geoadd', 'places', n / 9, i / 9, 'p' .. n)
  if i % 5 == 0 then c('hdel', 'hash', 'f' .. n % 9) end
  if i % 3 == 0 then c('lpop', 'list'); c('srem', 'set', n % 331); c('zpopmin', 'scores') end
end
local function add(name, values) found[#found + 1] = name .. ' ' .. table.concat(values, ' ') end
add('list', c('lrange', 'list', 0, -1)); add('sorted', c('sort', 'list', 'limit', 5, 50, 'desc'))
add('set', c('sort', 'set', 'alpha')); add('scores', c('zrange', 'scores', 0, -1, 'withscores'))
local fields = c('hkeys', 'hash'); table.sort(fields); add('hash', fields)
add('values', c('hmget', 'hash', unpack(fields)))
add('text', {c('get', 'text'), c('bitcount', 'bits'), c('bitpos', 'bits', 0, 3), c('pfcount', 'seen')})
add('stream', {c('xlen', 'stream')})
for _, entry in ipairs(c('xrange', 'stream', 100, 130)) do add(entry[1], entry[2]) end
add('near', c('geosearch', 'places', 'fromlonlat', 30, 20, 'byradius', 900, 'km', 'asc'))
add('packed', {redis.sha1hex(cmsgpack.pack(fields)), cjson.encode(c('lrange', 'list', 0, 40))})
return found
"""
"""Fills keys of every type, changes them, and says what is in them."""


class Redis:
    """A server that listens on a socket in a directory."""

    def __init__(self, pid: int, path: str) -> None:
        self.pid, self.path = pid, path

    def ask(self, *words: str) -> str:
        """Return the answer to one command."""
        command = ["redis-cli", "-s", self.path, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=180).stdout.strip()

    def benchmark(self) -> str:
        """Run Redis's own benchmark, scripts, and a save in a fork child; fail where an answer is wrong.

        Return what is then in keys of every type, the same for every server.
        """
        assert self.ask("flushall") == "OK"
        command = ["redis-benchmark", "-s", self.path, "-n", "5000", "-q", "-t", COMMANDS]
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert outcome.returncode == 0, outcome.stderr
        assert (self.ask("get", "counter:__rand_int__"), self.ask("llen", "mylist")) == ("5000", "5000")
        assert self.ask("eval", ADDING, "0") == "167167000"
        contents = self.ask("eval", ALL_TYPES, "0")
        assert contents.startswith("list ")
        wait_until(lambda: self.ask("bgsave").startswith("Background saving started"), "redis saves in a child")
        assert self.ask("get", "k") == "500500"
        wait_until(lambda: "bgsave_in_progress:0" in self.ask("info", "persistence"), "the child ends")
        return contents


@contextmanager
def redis(directory: Path, program: str = "redis-server") -> Iterator[Redis]:
    """Run a server for the length of a ``with`` block; at the end it is asked to stop, and must."""
    command, path = _command(directory, program)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _answers(path), "redis answers")
            server = Redis(process.pid, path)
            yield server
            server.ask("shutdown", "nosave")
            assert process.wait(180) == 0
        finally:
            if process.poll() is None:
                process.kill()


@contextmanager
def redis_started(
    directory: Path, arm: "Callable[[anyprobe.Session], object]", **options: Any
) -> "Iterator[tuple[Redis, anyprobe.Session]]":
    """Run a server with probes that ``arm`` places before its first instruction, as long; ``options`` are a session's.

    What was counted can be read after it, too.
    """
    command, path = _command(directory, "redis-server")
    with anyprobe.run(command, stdout=subprocess.DEVNULL, **options) as session:
        arm(session)
        session.resume()
        wait_until(lambda: _answers(path), "redis answers", 900)  # all is planned anew once it handles faults
        server = Redis(session.pid, path)
        yield server, session
        server.ask("shutdown", "nosave")
        assert session.wait(60) == 0


def _command(directory: Path, program: str) -> tuple[list[str], str]:
    """Return the command that runs a server, and where it will listen."""
    for needed in (program, "redis-benchmark", "redis-cli"):
        if not shutil.which(needed):
            pytest.skip(f"needs {needed}")
    path = str(directory / "redis.sock")
    return [program, "--port", "0", "--unixsocket", path, "--save", "", "--dir", str(directory)], path


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0
