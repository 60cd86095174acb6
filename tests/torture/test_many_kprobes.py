"""Ten thousand kprobes with handlers in a running interpreter, fifty thousand sites of one program; and out again."""

import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

import anyprobe
from anyprobe import Count
from anyprobe.kprobes import Kprobe, debugfs, register_kprobes, unregister_kprobes
from anyprobe.probes.providers.function.outside import listing
from support.driver import started, wait_until
from support.image import Image
from support.many_functions import many_functions

pytestmark = pytest.mark.torture
PROGRAM = """
import json
print("ready", flush=True)
while True:
    assert json.loads(json.dumps({"a": [1, 2, 3] * 50})) == {"a": [1, 2, 3] * 50}
"""


def test_ten_thousand_kprobes():
    hits = Count("hits")

    def pre(p, regs):
        hits.add()
        return 0

    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        with anyprobe.attach(process.pid) as session:
            objects = [each for each in session.objects.objects if each.name != "[vdso]" and "ld-" not in each.name]
            places = [(each, f) for each in objects for f in each.image.functions.all() if f.size >= 16][:10_000]
            probes = [Kprobe(addr=function.start + loaded.bias, pre_handler=pre) for loaded, function in places]
            while register_kprobes(probes) != 0:
                probes = [kp for kp in probes if not kp.error]
            assert len(probes) > 8000
            wait_until(lambda: hits.result().total.count > 100_000, "many hits")
            assert len(debugfs.listing()) == len(probes)
            unregister_kprobes(probes)
            assert process.poll() is None
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_fifty_thousand_sites_are_attached_and_detached():
    """BPF's bench_uprobe: how long that takes is said, as there."""
    number = 50_000
    with started(many_functions(number)) as target:
        image = Image.of(target.pid)
        with anyprobe.attach(target.pid) as session:
            with timed("attached by one spec"):
                (probe,) = session.count("a.out:many_*")
            assert not probe.refused
            target.go(1)
            assert sum(site.hits for site in session.snapshot().sites) == number
            with timed("detached"):
                session.remove(probe)
            target.go(1)
        with anyprobe.attach(target.pid) as session:
            probes = [Kprobe(symbol_name=f"many_{n}") for n in range(number)]
            with timed("attached as kprobes, by their names"):
                assert register_kprobes(probes) == 0
            assert len(listing.inspect(target.pid).registered) == number
            target.go(2)
            assert sum(kp.hits for kp in probes) == 2 * number
            with timed("detached"):
                unregister_kprobes(probes)
            print(f"everything stood still for {session.splicing.access.pause_us} µs")
            target.go(1)
        now = Image.of(target.pid)
        assert (now.text, now.maps) == (image.text, image.maps)
        target.finish()


@contextmanager
def timed(what):
    """Say how long something took."""
    began, spent = time.monotonic(), time.process_time()
    yield
    print(f"{what}: {time.monotonic() - began:.2f} s, {time.process_time() - spent:.2f} s of them computing")
