"""Tasks and actors of Ray on worker processes: sums are those of the tasks' own counts, by worker and by task."""

import importlib.util
import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("ray", "opentelemetry.sdk", "opentelemetry.metrics")),
    reason="ray is optional: pip install ray opentelemetry-sdk opentelemetry-exporter-prometheus",
)

PROGRAM = """
import json, os, zlib
import ray
import anyprobe.ray

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
probes = anyprobe.ray.Probes("libz:deflateEnd", "libz:crc32")

@ray.remote
@probes.task
def pack(times):
    for _ in range(times):
        zlib.compress(b"x" * 100)
    return os.getpid(), times

@ray.remote
class Checker:
    @probes.task
    def check(self, times):
        for _ in range(times):
            zlib.crc32(b"x" * 100)
        return os.getpid(), times

@ray.remote
@probes.task
def fails():
    zlib.crc32(b"x")
    raise ValueError("its own")

packed = ray.get([pack.remote(times) for times in range(1, 21)])
checker = Checker.remote()
checked = ray.get([checker.check.remote(times) for times in range(1, 11)])
try:
    ray.get(fails.remote())
    failed = ""
except ValueError as error:
    failed = str(error)
ray.kill(checker)
calls = lambda found: {one.function: one.count + one.tail_exits + one.learning for one in found.functions}
print(json.dumps({
    "packed": packed, "checked": checked, "failed": failed, "whole": calls(probes.snapshot()),
    "tasks": {name: {one.function: one.calls for one in found} for name, found in probes.by_task().items()},
    "workers": {found.target.pid: calls(found) for found in probes.snapshots().values()},
    "failures": probes.failures(),
}))
"""


def test_sums_are_those_of_the_tasks(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    own = {}
    for pid, times in found["packed"]:
        own[str(pid)] = own.get(str(pid), 0) + times
    assert {pid: calls["deflateEnd"] for pid, calls in found["workers"].items() if calls["deflateEnd"]} == own
    (checker,) = {str(pid) for pid, _ in found["checked"]}
    assert found["workers"][checker]["crc32"] >= 55, "an actor that has ended is there"
    assert found["whole"] == {"deflateEnd": 210, "crc32": 56}
    names = {name: {function.partition(":")[2]: count for function, count in calls.items()}
             for name, calls in found["tasks"].items()}  # fmt: skip
    assert names == {"pack": {"deflateEnd": 210}, "Checker.check": {"crc32": 55}, "fails": {"crc32": 1}}
    assert found["failed"].endswith("its own")
    assert found["failures"] == {}
