"""Command and key of each request to Redis, by its debug information; Debian has none, so it is built from source."""

import pytest

import anyprobe
from anyprobe import Count, cstr
from support.debian_sources import original_of, run
from support.driver import cache_directory
from support.redis_server import redis

pytestmark = [pytest.mark.live, pytest.mark.torture]


@pytest.fixture(scope="module")
def server():
    """Redis as Debian has it, compiled with debug information, once."""
    folder = cache_directory() / "redis-with-debug-information"
    program = folder / "redis-server"
    if program.exists():
        return program
    archive, source = original_of("redis", folder), folder / "source"
    source.mkdir(exist_ok=True)
    run("tar", "xf", str(archive), "--strip-components=1", cwd=source)
    run("make", "MALLOC=libc", "OPTIMIZATION=-O2", "REDIS_CFLAGS=-g", "redis-server", cwd=source / "src")
    (source / "src" / "redis-server").rename(program)
    return program


def test_command_and_key_of_each_request(server, tmp_path):
    requests = Count("requests", by=("command", "key"))
    with redis(tmp_path, str(server)) as running, anyprobe.attach(running.pid) as session:

        @session.entry("a.out:call", when=lambda c: c.argc > 1)
        def on_call(c, flags):
            requests[cstr(c.cmd.fullname, 16), cstr(c.argv[1].ptr, 24)].add()

        for number in range(20):
            running.ask("set", f"key:{number % 5}", "x" * number)
            assert running.ask("get", f"key:{number % 5}") == "x" * number
        running.ask("lpush", "list", "a", "b", "c")
        running.ask("hset", "hash", "field", "value")
        counted = {key: cell.count for key, cell in requests.result().entries.items()}
        assert counted == {
            **{("set", f"key:{number}"): 4 for number in range(5)},
            **{("get", f"key:{number}"): 4 for number in range(5)},
            ("lpush", "list"): 1, ("hset", "hash"): 1,
        }  # fmt: skip
        assert session.handling.misses() == {"fault": 0, "abandoned": 0, "division": 0}
