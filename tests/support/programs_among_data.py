"""Small programs that are run with everything of them counted, and must not notice."""

import collections
import os
import subprocess

import anyprobe

PATIENCE = 180
LEVELS = {"functions": ("a.out:*", "a.out:*%return"), "blocks": ("a.out:*%block",), "instructions": ("a.out:*%insn",)}


def check(path, level, shared=()):
    """Run a program without and with probes; return how often each function was begun and ended.

    Functions whose code others jump into are ``shared``: these end more often.
    """
    plain = subprocess.run([path], capture_output=True, check=False)
    output = path.with_name("output")
    with output.open("wb") as stdout, anyprobe.run([str(path)], stdout=stdout) as session:
        session.count(*LEVELS[level])
        session.resume()
        status = session.wait(PATIENCE)
        snapshot = session.snapshot()
    assert status is not None
    assert (output.read_bytes(), os.waitstatus_to_exitcode(status)) == (plain.stdout, plain.returncode)
    begun, ended = collections.Counter(), collections.Counter()
    for site in snapshot.sites:
        (begun if site.kind == "entry" else ended)[site.function] += site.hits
    if level == "functions":
        assert sum(begun.values()) > 0
        ends = {name: hits for name, hits in ended.items() if hits}
        assert ends == {name: ends[name] if name in shared else begun[name] for name in ends}
    return {name: (begun[name], ended[name]) for name in begun | ended}
