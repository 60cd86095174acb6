"""The case of docs/case-studies/postgresql-drop.md: DROP TABLE against shared_buffers, found from above, and changed.

Needs Debian's package postgresql-15, and 2 GB of memory. As root, the server runs as the user postgres.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BIN = Path("/usr/lib/postgresql/15/bin")
ANYPROBE = [sys.executable, "-m", "anyprobe"]
LOOP = "DropRelFileNodesAllBuffers"
ONE = "CREATE TABLE t:client_id (a int); INSERT INTO t:client_id VALUES (1); DROP TABLE t:client_id;"
TABLES = 25
"""Tables that the changed work drops at once."""
SECONDS = 8
_NAMES = itertools.count(1)


def as_user(*words: object) -> list[str]:
    """Return the command that runs one of PostgreSQL's programs as its user, who must not be root."""
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    return [*user, str(BIN / str(words[0])), *map(str, words[1:])]


def run(*words: object) -> str:
    """Run one of PostgreSQL's programs; return what it prints."""
    done = subprocess.run(as_user(*words), capture_output=True, text=True, cwd="/", check=False)
    if done.returncode:
        sys.exit(f"{words[0]}: {done.stderr}")
    return done.stdout


@contextmanager
def server(buffers: str) -> Iterator[str]:
    """Run a server with so many shared buffers; give the folder of its socket."""
    folder = tempfile.mkdtemp(prefix="anyprobe-case-", dir="/dev/shm")  # files that cost nothing
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    data = f"{folder}/data"
    try:
        run("initdb", "-D", data, "--no-sync", "-A", "trust")
        settings = (f"unix_socket_directories={folder}", "listen_addresses=", "fsync=off", "autovacuum=off")
        options = " ".join(f"-c {each}" for each in (*settings, f"shared_buffers={buffers}"))
        run("pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", options, "start")
        yield folder
    finally:
        if Path(f"{data}/postmaster.pid").exists():
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def pgbench(folder: str, script: str, seconds: float = SECONDS) -> float:
    """Run a script from one client; return how often in a second."""
    path = Path(folder, "script.sql")
    path.write_text(script)
    path.chmod(0o644)
    printed = run("pgbench", "-n", "-c", "1", "-T", int(seconds), "-f", path, "-h", folder, "postgres")
    found = re.search(r"tps = ([\d.]+)", printed)
    assert found, printed
    return float(found[1])


def batched() -> str:
    """Return the changed work: as many tables, dropped together."""
    names = [f"t{number}" for number in range(TABLES)]
    made = (f"CREATE TABLE {name} (a int); INSERT INTO {name} VALUES (1);" for name in names)  # noqa: S608 - names of its own
    return f"{' '.join(made)} DROP TABLE {', '.join(names)};"


def looked_at(folder: str, *words: str) -> None:
    """Show what anyprobe says of the backend while tables are dropped one by one."""
    Path(folder, "script.sql").write_text(ONE)
    names = ", ".join(f"t{number}" for number in range(TABLES))  # that work which was ended has left
    run("psql", "-Xq", "-h", folder, "-c", f"SET client_min_messages = error; DROP TABLE IF EXISTS {names}", "postgres")
    name, silent = f"case{next(_NAMES)}", subprocess.DEVNULL
    work = as_user("pgbench", "-n", "-c", 1, "-T", 60, "-f", f"{folder}/script.sql", "-h", folder, "postgres")
    with subprocess.Popen(work, cwd="/", stdout=silent, stderr=silent, env={**os.environ, "PGAPPNAME": name}) as going:
        backend = ""
        while not backend and going.poll() is None:
            asked = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{name}'"  # noqa: S608
            backend = run("psql", "-XqAt", "-h", folder, "-c", asked, "postgres").strip()
        shown = (f"'{word}'" if "%" in word else word for word in words)
        print("$ anyprobe", *shown, "-p", backend, flush=True)
        subprocess.run([*ANYPROBE, *words, "-p", backend], check=True, stderr=subprocess.STDOUT)
        print(flush=True)
        going.terminate()


def main() -> None:
    """Measure against the size of shared_buffers, go down to the cause, change the work, and measure again."""
    down = ("standard_ProcessUtility", "CommitTransactionCommand", "smgrDoPendingDeletes", "smgrdounlinkall", LOOP)
    for buffers in ("16MB", "128MB", "1GB", "2GB"):
        with server(buffers) as folder:
            before, after = pgbench(folder, ONE), pgbench(folder, batched()) * TABLES
            how = f"{before:5.0f} tables a second one by one, {after:5.0f} when {TABLES} are dropped at once"
            print(f"shared_buffers = {buffers}: {how}\n", flush=True)
            if buffers == "1GB":
                looked_at(folder, "profile", "--for", "3", "--top", "6")
                looked_at(folder, "time", "--tree", *(f"postgres:{each}" for each in down), "--for", "4")
                looked_at(folder, "count", f"postgres:{LOOP}%block", f"postgres:{LOOP}", "--top", "5", "--for", "3")


if __name__ == "__main__":
    main()
