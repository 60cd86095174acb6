"""Snapshots made up for the tests of reports and JSON."""

import zlib

from anyprobe.data.findings.refused import RefusedSite
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot

NO_PROCESS = 4194305
"""A number that no process can have (Linux gives 2 ** 22 of them at most): what ends a made-up one ends no other."""


def site(function="malloc", hits=12345, **changes) -> SiteResult:
    parts = {
        "spec": f"pid:libc.so.6:{function}:entry",
        "module": "libc.so.6",
        "function": function,
        "offset": 0,
        "address": 140245 if function == "malloc" else 0x20_0000 + zlib.crc32(function.encode()),  # each has its own
        "strategy": "jump",
        "armed": True,
        "hits": hits,
    }
    return SiteResult(**(parts | changes))


def timing(function="malloc", **changes) -> FunctionTiming:
    parts = {
        "spec": f"pid:libc.so.6:{function}:entry",
        "module": "libc.so.6",
        "function": function,
        "count": 100,
        "tail_exits": 3,
        "sum_ns": 15000.0,
        "min_ns": 10.0,
        "max_ns": 1005.0,
        "buckets": ((10.0, 20.0, 50), (20.0, 30.0, 40), (1000.0, 1010.0, 10)),
    }
    return FunctionTiming(**(parts | changes))


def refused(function="_dl_relocate", reason="jump-target-in-jtpr") -> RefusedSite:
    detail = "0x1004 is jumped to from 0x1020"
    return RefusedSite(f"pid:libc.so.6:{function}:entry", 140999, reason, detail)


def snapshot(**changes) -> Snapshot:
    parts = {
        "target": TargetInfo(NO_PROCESS, "/usr/bin/redis-server"),
        "duration_s": 5.0,
        "pause_us": {"arm": 310, "disarm": 120},
        "setup_s": {"resolve": 0.05, "plan": 0.21, "prepare": 0.11, "arm": 0.002},
        "sites": (site("free", 7), site("malloc", 12345), site("calloc", 0)),
        "refused": (refused(), refused("other"), refused("third", "lone-ret")),
    }
    return Snapshot(**(parts | changes))
