"""Programs that make code as they run, found by name: node and a JVM serve on, what they do is counted to the unit."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.driver import PATIENCE, wait_until
from support.standing import probed

pytestmark = pytest.mark.live
ROUNDS = 300
PLANS = 300
"""Seconds in which node is analysed, which takes long on a busy machine."""
NODE = """
let round = 0;
function hot(n) { let sum = 0; for (let i = 0; i < 20000; i++) sum += (i * n) % 7; return sum; }
process.stdin.on("data", (text) => {
    for (const line of text.toString().trim().split("\\n"))
        process.stdout.write(`${++round} ${hot(Number(line))}\\n`);
});
process.stdout.write("ready\\n");
"""
JAVA = """
import java.io.*;
public class Serve {
    static long hot(long n) { long sum = 0; for (long i = 0; i < 20000; i++) sum += (i * n) % 7; return sum; }
    public static void main(String[] arguments) throws IOException {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        long round = 0;
        for (String line; (line = asked.readLine()) != null;) {
            System.gc();
            System.out.println(++round + " " + hot(Long.parseLong(line)));
        }
    }
}
"""
SUMS = [sum(i * n % 7 for i in range(20000)) for n in range(7)]


def node(folder):
    (folder / "serve.js").write_text(NODE)
    specs = ["a.out:uv_try_write", "a.out:uv_async_send", "libc:write"]
    return [shutil.which("node") or "/usr/bin/node", folder / "serve.js"], specs


def java(folder):
    (folder / "Serve.java").write_text(JAVA)
    program = "/usr/lib/jvm/java-17-openjdk-amd64/bin/java"
    return [program, "-XX:+UseSerialGC", folder / "Serve.java"], ["usdt:hotspot:gc__begin"]


@contextmanager
def serving(folder, made):
    """Start it under a name of its own; yield it with a function that has it serve one round."""
    command, specs = made(folder)
    if not Path(command[0]).exists():
        pytest.skip(f"{made.__name__} is not installed")
    name = f"any-{made.__name__}-{os.getpid() % 10000}"
    link = folder / name
    link.symlink_to(os.path.realpath(command[0]))
    pipe = subprocess.PIPE
    with subprocess.Popen([link, *command[1:]], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process, name, specs
        finally:
            process.kill()


def serve(process, rounds):
    """Have it serve some rounds, and see that each answer is right."""
    for n in rounds:
        process.stdin.write(f"{n}\n")
        process.stdin.flush()
        number, result = process.stdout.readline().split()
        assert (int(number), int(result)) == (n + 1, hot(n))


def hot(n):
    return SUMS[n % 7] if n < 7 else sum(i * n % 7 for i in range(20000))


@pytest.mark.parametrize("made", [node, java], ids=["node", "java"])
def test_found_by_name_and_counted_while_it_compiles(tmp_path, made):
    with serving(tmp_path, made) as (process, name, specs):
        serve(process, range(10))
        command = [sys.executable, "-m", "anyprobe", "count", *specs, "--json", "-n", name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as counting:
            wait_until(lambda: counting.poll() is not None or probed(process.pid) == len(specs), "it is probed", PLANS)
            serve(process, range(10, 10 + ROUNDS))
            counting.send_signal(signal.SIGINT)
            shown, said = counting.communicate(timeout=PATIENCE)
        assert counting.returncode == 130, said
        document = json.loads(shown)
        hits = {site["function"]: site["hits"] for site in document["sites"]}
        if made is node:  # its other threads wake the first one, by a write at most each time
            assert ROUNDS <= hits.pop("write") <= ROUNDS + hits.pop("uv_async_send")
        assert list(hits.values()) == [ROUNDS]
        assert document.get("warnings", []) == []
        serve(process, range(10 + ROUNDS, 20 + ROUNDS))
