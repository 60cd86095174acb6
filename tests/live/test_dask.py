"""The plug-in of Dask on a cluster of processes: sums are those of the tasks' own counts, by worker and by task."""

import importlib.util
import json
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        importlib.util.find_spec("distributed") is None, reason="distributed is optional, not installed"
    ),
]

PROGRAM = """
import json, os, zlib
from distributed import Client, LocalCluster
import anyprobe.dask

def pack(times):
    for _ in range(times):
        zlib.compress(b"x" * 100)
    return os.getpid(), times

def check(times):
    for _ in range(times):
        zlib.crc32(b"x" * 100)
    return os.getpid(), times

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        client.register_plugin(anyprobe.dask.Plugin("libz:deflateEnd", "libz:crc32", by_task=True))
        packed = client.gather(client.map(pack, range(1, 21), pure=False))
        checked = client.gather(client.map(check, range(1, 11), pure=False))
        each = anyprobe.dask.snapshots(client)
        whole = anyprobe.dask.snapshot(client)
        tasks = anyprobe.dask.by_task(client)
        client.unregister_worker_plugin("anyprobe")
        calls = lambda found: {one.function: one.count + one.tail_exits + one.learning for one in found.functions}
        print(json.dumps({
            "packed": packed, "whole": calls(whole), "tasks": {name: {one.function: one.calls for one in found}
                for name, found in tasks.items()},
            "workers": {found.target.pid: calls(found) for found in each.values()},
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
    assert found["whole"] == {"deflateEnd": 210, "crc32": 55}
    names = {name: {function.partition(":")[2]: count for function, count in calls.items()}
             for name, calls in found["tasks"].items()}  # fmt: skip
    assert names == {"pack": {"deflateEnd": 210}, "check": {"crc32": 55}}
