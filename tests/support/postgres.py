"""A PostgreSQL server of one's own, and work for it that is counted."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.driver import PATIENCE

POSTGRES = Path("/usr/lib/postgresql/15/bin")
STATEMENT = "SELECT 4711 + 2;"
CLIENTS, EACH = 4, 50


def as_postgres(program: str, *words: object) -> str:
    """Run one of PostgreSQL's programs as its user; return its output."""
    outcome = subprocess.run(command(program, *words), capture_output=True, text=True, timeout=4 * PATIENCE, cwd="/")
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def command(program: str, *words: object) -> list[str]:
    """Return the command that runs one of PostgreSQL's programs as its user, who is not root."""
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    return [*user, str(POSTGRES / program), *map(str, words)]


@dataclass
class Database:
    """A server, which logs each statement."""

    directory: Path
    pid: int

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def pgbench(self) -> int:
        """Run a statement from several clients; return how many were processed."""
        script = self.directory / "script.sql"
        script.write_text(STATEMENT)
        outcome = as_postgres(
            "pgbench", "-n", "-M", "simple", "-c", CLIENTS, "-t", EACH, "-f", script, "-h", self.directory, "postgres"
        )
        found = re.search(r"actually processed: (\d+)", outcome)
        assert found, outcome
        return int(found[1])

    def ask(self, *statements: str) -> list[str]:
        """Send statements from one client; return the lines of the answers, without heads."""
        each = [word for statement in statements for word in ("-c", statement)]
        return as_postgres("psql", "-XqAt", "-h", self.directory, *each, "postgres").splitlines()

    def statements(self) -> int:
        return len(re.findall(r"LOG:  statement: ", self.log))

    def backends(self) -> list[int]:
        """Return the server's processes."""
        return [self.pid, *map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())]


@contextmanager
def postgres(*settings: str) -> Iterator[Database]:
    """Run a server for the length of a ``with`` block; skip the test where there is none."""
    if not (POSTGRES / "initdb").exists() or (os.geteuid() == 0 and not shutil.which("runuser")):
        pytest.skip("PostgreSQL 15 is not installed")
    directory = Path(tempfile.mkdtemp(prefix="anyprobe-postgres-", dir="/tmp"))  # pytest's are root's alone
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        if os.geteuid() == 0:
            shutil.chown(directory, "postgres", "postgres")
        data = directory / "data"
        as_postgres("initdb", "-D", data, "--no-sync", "-A", "trust")
        chosen = (f"unix_socket_directories={directory}", "listen_addresses=", "log_statement=all", "fsync=off")
        options = " ".join(f"-c {setting}" for setting in (*chosen, "autovacuum=off", *settings))
        as_postgres("pg_ctl", "-D", data, "-w", "-l", directory / "log", "-o", options, "start")
        stack.callback(as_postgres, "pg_ctl", "-D", data, "-m", "immediate", "stop")
        yield Database(directory, int((data / "postmaster.pid").read_text().split()[0]))
