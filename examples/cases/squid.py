"""The case of docs/case-studies/squid.md: Squid with many small objects, in the order of KernInst's paper.

Needs Debian's package squid, and root for the kernel's part and Squid's own user.
"""

import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SQUID = "/usr/sbin/squid"
ANYPROBE = [sys.executable, "-m", "anyprobe"]
BODY = b"x" * 2000
CLIENTS, SECONDS = 4, 8
SETTINGS = """
http_port 127.0.0.1:{port}
http_access allow all
cache_mem 1 MB
maximum_object_size_in_memory 1 KB
cache_dir {cache}
access_log none
cache_log {folder}/cache.log
pid_filename {folder}/squid.pid
coredump_dir {folder}
cache_effective_user proxy
pinger_enable off
shutdown_lifetime 0 seconds
"""


class Origin(BaseHTTPRequestHandler):
    """Answers everything with a small object that may be kept."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # one write for each answer: two would wait for each other's acknowledgement
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.send_header("Cache-Control", "max-age=3600")
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_: object) -> None:
        """Be silent."""


class Load:
    """Clients that ask for objects, each of them new or one of some that were asked for before."""

    def __init__(self, port: int, origin: int) -> None:
        """Begin."""
        self.requests, self.ends = 0, False
        self._port, self._origin = port, origin
        self._threads = [threading.Thread(target=self._ask, args=(each,)) for each in range(CLIENTS)]
        for each in self._threads:
            each.start()

    def _ask(self, client: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        number = 0
        while not self.ends:
            number += 1
            wanted = number if number % 2 else max(number - 200, 1)
            connection.request("GET", f"http://127.0.0.1:{self._origin}/{client}/{wanted}")
            connection.getresponse().read()
            self.requests += 1

    def close(self) -> None:
        """End."""
        self.ends = True
        for each in self._threads:
            each.join()


@contextmanager
def squid(cache: str, port: int) -> Iterator[int]:
    """Run a proxy with such a cache for the length of a ``with`` block; give its process."""
    folder = tempfile.mkdtemp(prefix="anyprobe-squid-", dir="/var/tmp")
    try:
        shutil.chown(folder, "proxy", "proxy")
        settings = Path(folder, "squid.conf")
        settings.write_text(SETTINGS.format(port=port, folder=folder, cache=cache.format(folder)))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([SQUID, "-N", "-z", "-f", settings], check=True, **quiet)  # type: ignore[call-overload]
        with subprocess.Popen([SQUID, "-N", "-f", settings], **quiet) as process:  # type: ignore[call-overload]
            time.sleep(2)
            yield process.pid
            process.terminate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def looked_at(*words: str) -> None:
    """Show what a command of anyprobe says."""
    print("$ anyprobe", *words, flush=True)
    subprocess.run([*ANYPROBE, *words], check=False, stderr=subprocess.STDOUT)
    print(flush=True)


def measured(load: Load, pid: int) -> str:
    """Return requests a second, and what the proxy takes of a processor for one."""
    ticks = os.sysconf("SC_CLK_TCK")

    def used() -> float:
        parts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(parts[11]) + int(parts[12])) / ticks

    begun, requests, before = time.monotonic(), load.requests, used()
    time.sleep(SECONDS)
    made, taken = load.requests - requests, time.monotonic() - begun
    return f"{made / taken:.0f} requests a second, {1e6 * (used() - before) / made:.0f} us of processor each"


def main() -> None:
    """Measure with a file for each object, go down, change the cache to one file, and measure again."""
    origin = ThreadingHTTPServer(("127.0.0.1", 0), Origin)
    threading.Thread(target=origin.serve_forever, daemon=True).start()
    before, after = "ufs {}/cache 400 16 64", "rock {}/cache 400"
    for turn, cache in enumerate((before, after, before, after)):
        with squid(cache, 3190 + turn) as pid:
            load = Load(3190 + turn, origin.server_address[1])
            time.sleep(3)
            print(f"cache_dir {cache.split()[0]}: {measured(load, pid)}\n", flush=True)
            where = ("-p", str(pid), "--for", "4")
            if turn < 2:
                calls = ("open64", "unlink", "read", "write", "close")
                looked_at("time", *(f"libc:{each}" for each in calls), *where)
                looked_at("offcpu", *where)
            if turn == 0:
                below = ("do_filp_open", "path_openat", "link_path_walk", "do_truncate")
                looked_at("time", *(f"kernel::{each}" for each in below), *where)
            load.close()
    origin.shutdown()


if __name__ == "__main__":
    main()
