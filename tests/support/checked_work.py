"""Work for the scheduler, pipes, files and the loopback whose results are checked: a wrong byte is an error."""

import hashlib
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROUNDS = 200
_SIZE = 1 << 16
_SECONDS = 120


def ping_pong(rounds: int = ROUNDS) -> None:
    """Send numbers through two pipes to a process, which adds one to each."""
    (read_there, write_here), (read_here, write_there) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            while data := os.read(read_there, 8):
                os.write(write_there, (int.from_bytes(data, "little") + 1).to_bytes(8, "little"))
                if int.from_bytes(data, "little") == rounds - 1:
                    break
        finally:
            os._exit(0)
    for number in range(rounds):
        os.write(write_here, number.to_bytes(8, "little"))
        assert int.from_bytes(os.read(read_here, 8), "little") == number + 1
    os.waitpid(child, 0)
    for each in (read_there, write_here, read_here, write_there):
        os.close(each)


def files(folder: Path, rounds: int = ROUNDS // 10) -> None:
    """Write, move, cut and read files; what is read has the sum of what was written."""
    chance = random.Random(rounds)
    for number in range(rounds):
        data = chance.randbytes(chance.randrange(1, _SIZE))
        path = folder / f"file{number}"
        path.write_bytes(data)
        with path.open("r+b") as file:
            os.fsync(file.fileno())
            cut = chance.randrange(len(data) + 1)
            file.truncate(cut)
        moved = path.rename(folder / f"moved{number}")
        assert hashlib.sha256(moved.read_bytes()).digest() == hashlib.sha256(data[:cut]).digest()
        moved.unlink()
    assert not any(folder.glob("moved*"))


def echo(rounds: int = ROUNDS // 4) -> None:
    """Send random bytes over TCP's loopback to a thread, which sends them back."""
    chance = random.Random(rounds)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_SECONDS)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(_SECONDS)
                while data := connection.recv(_SIZE):
                    connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        with socket.create_connection(server.getsockname(), timeout=_SECONDS) as client:
            for _ in range(rounds):
                data = chance.randbytes(chance.randrange(1, _SIZE // 4))
                client.sendall(data)
                got = b""
                while len(got) < len(data):
                    got += client.recv(len(data) - len(got))
                assert got == data
        thread.join(_SECONDS)


def build(folder: Path) -> None:
    """Build a small program of two files with ``make``, and run it; where there is no compiler do nothing."""
    if not (shutil.which("make") and shutil.which("cc")):
        return
    place = folder / "project"
    place.mkdir()
    (place / "Makefile").write_text("sum: main.o add.o\n\tcc -o $@ $^\n%.o: %.c\n\tcc -O1 -c -o $@ $<\n")
    (place / "add.c").write_text("long add(long a, long b) { return a + b; }\n")
    (place / "main.c").write_text(
        "long add(long, long); int printf(const char *, ...);\n"
        'int main(void) { long n = 0; for (int i = 1; i <= 1000; i++) n = add(n, i); printf("%ld", n); return 0; }\n'
    )
    subprocess.run(["make", "-s", "-j2", "-C", place], check=True, timeout=_SECONDS * 5)
    assert subprocess.run([place / "sum"], capture_output=True, check=True).stdout == b"500500"
    shutil.rmtree(place)


def warm_up(folder: Path) -> None:
    """Do all the work once: what flips once, static keys and caches, has flipped then."""
    ping_pong(5)
    echo(5)
    files(folder, 2)


@contextmanager
def going_on(folder: Path) -> Iterator[None]:
    """Do all of it, again and again, in a process and a folder of its own, until the end; raise what was wrong then."""
    folder = folder / "going_on"
    folder.mkdir(exist_ok=True)
    # a thread of this process would wait for its interpreter, and have it wait
    worker = subprocess.Popen([sys.executable, __file__, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"begun\n"
        yield
    finally:
        rounds, _ = worker.communicate(timeout=_SECONDS)
    assert worker.returncode == 0
    assert int(rounds) > 0


def _work(folder: Path) -> int:
    """Work until the standard input ends; return how often all of it was done."""
    rounds = 0
    print("begun", flush=True)
    while not rounds or not select.select([0], [], [], 0)[0]:
        ping_pong(20)
        files(folder, 3)
        echo(10)
        rounds += 1
    return rounds


if __name__ == "__main__":
    print(_work(Path(sys.argv[1])))
