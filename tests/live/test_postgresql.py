"""PostgreSQL: what its executor takes, in each backend, beside what its own statistics say."""

import time
from contextlib import ExitStack
from subprocess import PIPE, Popen

import pytest

import anyprobe
from anyprobe import SessionGroup
from support.driver import wait_until
from support.postgres import CLIENTS, EACH, command, postgres
from support.results import timing

pytestmark = pytest.mark.live
EXECUTOR = "postgres:standard_ExecutorRun"
SLEEP = "SELECT pg_sleep(0.02)"
RESET = "SELECT pg_stat_statements_reset()"
STATISTICS = "SELECT sum(calls), sum(total_exec_time) FROM pg_stat_statements WHERE query LIKE {like}"


@pytest.fixture(scope="module")
def database():
    with postgres("shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track_utility=off") as server:
        server.ask("CREATE EXTENSION pg_stat_statements")
        yield server


class Client:
    """A connection of its own, and the process that serves it."""

    def __init__(self, database):
        psql = command("psql", "-XqAt", "-h", database.directory, "postgres")
        self.process = Popen(psql, stdin=PIPE, stdout=PIPE, text=True, bufsize=1, cwd="/")
        (pid,) = self.ask("SELECT pg_backend_pid()")
        self.pid = int(pid)

    def ask(self, statement):
        """Return the lines that answer a statement."""
        print(f"{statement};\n\\echo end", file=self.process.stdin, flush=True)
        return list(iter(lambda: self.process.stdout.readline().strip(), "end"))

    def close(self):
        self.process.communicate(timeout=180)


def statistics(database, like):
    """Return how many executions the server has seen, and what they took, in milliseconds."""
    (line,) = database.ask(STATISTICS.format(like=f"'{like}'"))
    calls, milliseconds = line.split("|")
    return int(calls), float(milliseconds)


def timed(snapshots):
    """Return what each process has executed."""
    parts = [each for snapshot in snapshots for each in snapshot.processes]
    return {each.process.pid: found for each in parts for found in each.functions if found.count + found.learning}


def slow(found):
    """Return how many calls took about as long as the sleeps."""
    return sum(sum(count for low, _, count in one.buckets if low > 10_000_000) for one in found)


def test_each_backend_has_the_calls_that_it_was_asked_for(database):
    """Backends that were there, attached to one by one, and those that come, which have the probes of the server."""
    with ExitStack() as stack:
        old = [Client(database) for _ in range(2)]
        with SessionGroup.attach([database.pid, *(client.pid for client in old)]) as group:
            group.time(EXECUTOR)
            new = [Client(database) for _ in range(2)]  # each has asked once
            for client in (*old, *new):
                stack.callback(client.close)
            database.ask(RESET)
            asked = timed(group.snapshots())
            begin = time.monotonic()
            for times, client in enumerate((*old, *new), 1):
                for _ in range(times):
                    client.ask(SLEEP)
            waited = 1000 * (time.monotonic() - begin)
            calls, milliseconds = statistics(database, "SELECT pg_sleep%")
            group.pump(0.2)
            found = timed(group.snapshots())
    by_client = [found[client.pid] for client in (*old, *new)]
    assert [one.count + one.learning for one in by_client] == [1, 2, 3 + 1, 4 + 1]
    assert sum(one.learning for one in by_client) == 0  # the callers are in the server itself, and direct
    assert calls == 10
    first = [asked[client.pid] for client in new]
    assert slow(by_client) - slow(first) == calls
    slept = sum(one.sum_ns for one in by_client) - sum(one.sum_ns for one in first)
    assert milliseconds - 1 < slept / 1e6 < max(1.05 * milliseconds + 10, waited)  # longer on a busy machine alone


def test_the_sum_is_that_of_the_servers_own_statistics(database):
    """Many clients come and go: each has a backend that is forked for it."""
    with anyprobe.attach(database.pid) as session:
        session.time(EXECUTOR)
        database.ask(RESET)
        before = timing(session.snapshot(), "standard_ExecutorRun").count
        assert database.pgbench() == CLIENTS * EACH
        looks = []

        def all_end():
            looks.append(database.ask("SELECT pid FROM pg_stat_activity WHERE state = 'active'"))
            return len(looks[-1]) == 1

        wait_until(all_end, "all end")
        calls, milliseconds = statistics(database, "SELECT $1 + $2%")
        snapshot = session.snapshot()
    found = timing(snapshot, "standard_ExecutorRun")
    assert calls == CLIENTS * EACH
    processes = timed([snapshot])
    assert sorted(one.count for one in processes.values() if one.count >= EACH) == [EACH] * CLIENTS
    assert before + calls <= found.count <= before + calls + 60 + len(looks)  # psql's own
    assert (found.learning, found.unmatched, found.nmissed, found.in_flight) == (0, 0, 0, 0)
    assert found.sum_ns / 1e6 > milliseconds


def test_an_extension_that_backends_load_themselves(database):
    """The server that has forked them never loads it; each backend's calls are its own, from the first on."""
    database.ask("CREATE EXTENSION fuzzystrmatch")
    with ExitStack() as stack:
        old = Client(database)
        stack.callback(old.close)
        with SessionGroup.attach([database.pid, old.pid]) as group:
            for session in group:
                session.count("fuzzystrmatch:levenshtein", follow=True)
                session.time("fuzzystrmatch:levenshtein", follow=True)
            new = [Client(database) for _ in range(3)]
            for client in new:
                stack.callback(client.close)
            for times, client in enumerate((old, *new), 1):
                for _ in range(times):
                    assert client.ask("SELECT levenshtein('kitten', 'sitting')") == ["3"]
            snapshot = group.snapshot()
    found = {process.pid: sum(hits.values()) for process, hits in snapshot.by_process.items()}
    assert [found[client.pid] for client in (old, *new)] == [1, 2, 3, 4]
    assert snapshot.hits == 10
    assert timing(snapshot, "levenshtein").count == 10
    assert snapshot.warnings == () or {"fork children" in warning for warning in snapshot.warnings} == {True}
    assert snapshot.pending == ()
