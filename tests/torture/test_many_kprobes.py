"""Ten thousand kprobes with handlers in a running interpreter, at once, and out again."""

import subprocess
import sys

import pytest

import anyprobe
from anyprobe import Count
from anyprobe.kprobes import Kprobe, debugfs, register_kprobes, unregister_kprobes
from live.driver import wait_until

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
