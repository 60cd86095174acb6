"""Runs of commands that are kept in files: what was measured, how and on which machine, and what came when.

The format is described in docs/archives.md: frames of Zstandard, each of one line of JSON, so ``zstdcat`` shows it.
What is written is there at once: a file whose writer was killed can be read up to its last whole line.
"""

import io
import json
import math
import os
import signal
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib.metadata import version
from typing import IO, Any

from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import UsageError
from anyprobe.data.archives.archive import document_of, value_of
from anyprobe.data.snapshots.profile import Profile
from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot

FORMAT, VERSION = "anyprobe-archive", 1
"""A version is increased by what readers of the one before would misunderstand, which new fields are not."""
EVENTS = (b'{"events":', b'{"values":', b'{"instants":')
"""What lines begin with that have recorded calls: they are read by ``data/calls/recording.py``."""
RANKS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Variables in which Open MPI, MPICH (Intel MPI, too) and Slurm say the rank, and how many there are."""
FEW, MOST_AT_ONCE = 4, 25
"""Archives for which another process is no gain, and those that one process has in memory at once."""
LONGEST_LINE = 1 << 29
"""Bytes: ten times what 10,000 functions with all their buckets take. More is no archive but an attempt."""
_BUILDS, _RECORDS = Mapping[str, str], Mapping[str, Mapping[str, Any]]
_LEVEL = 3
"""The level of compression: higher ones make a file a tenth smaller and take twice the time."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known of a run besides its results."""

    command: str
    """The command that has measured."""
    arguments: tuple[str, ...] = ()
    """Its arguments, and after ``--`` those of the program that it has started."""
    by: str | None = None
    """What was told apart: ``pid``, ``tid``, ``func(caller)``."""
    tree: bool = False
    """Whether its table is a tree of calls."""
    what: str = ""
    """What time its trees of calls are of; empty: of timed calls."""
    counted: str = "calls"
    """What the counts of its trees are of."""
    metric: str = ""
    """The name of what ``metric`` has measured; empty: it was another command."""
    written: float = 0.0
    """When it was written, as Unix time."""
    version: str = ""
    """The version of anyprobe."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """The host's name, its kernel and its processor."""
    merged: int = 0
    """How many archives it is the sum of; 0 unless it was merged."""
    rank: int | None = None
    """Which one of the processes that mpirun or srun has started it was measured in; None where none has."""
    ranks: int | None = None
    """How many these are, where that is known."""


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one run of a command."""

    info: RunInfo
    snapshots: tuple[Snapshot, ...] = ()
    """The results of each process at the end."""
    series: tuple[Snapshot, ...] = ()
    """What was added in each interval, of all processes; empty where results were not asked for again and again."""
    profile: Profile | None = None
    """Instead of snapshots where stacks were sampled."""
    builds: dict[str, str] = field(default_factory=dict)
    """The build-id of each module in the results, where it has one."""
    records: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields of a JSON document with what handlers have emitted."""
    warnings: tuple[str, ...] = ()
    """What is to be said of the file itself: that it ends early, or has what is not known here."""


def info_of(command: str, **facts: Any) -> RunInfo:  # noqa: ANN401 - fields of ``RunInfo``
    """Return what is known of a run that takes place now, on this machine."""
    rank, ranks = this_rank()
    return RunInfo(
        command, **facts, written=_now(), version=version("anyprobe"), machine=this_machine(), rank=rank, ranks=ranks
    )


def this_rank() -> tuple[int | None, int | None]:
    """Return which rank this process is, and of how many, as what has started it says; None where that is not known."""
    for rank, ranks in RANKS:
        if (found := os.environ.get(rank, "")).isdecimal():
            size = os.environ.get(ranks, "")
            return int(found), int(size) if size.isdecimal() else None
    return None, None


def _now() -> float:
    return round(time.time(), 3)


def this_machine() -> dict[str, str]:
    """Return the host's name, its kernel and its processor."""
    system = os.uname()
    found = {"host": system.nodename, "kernel": f"{system.sysname} {system.release}", "machine": system.machine}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.startswith("model name")]
    except OSError:
        lines = []
    processors = {"processor": lines[0].partition(":")[2].strip()} if lines else {}
    return found | processors | {"processors": str(os.cpu_count() or "")}


class Writer:
    """Writes a run line by line, each a frame of its own."""

    def __init__(self, stream: IO[bytes], info: RunInfo) -> None:
        """Write what is known at the beginning."""
        from zstandard import ZstdCompressor

        self._stream = stream
        self._compressor = ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
        self.put({"format": FORMAT, "version": VERSION, "info": document_of(info)})

    def frame(self, document: Mapping[str, Any]) -> bytes:
        """Return a line as it is written."""
        return self._compressor.compress(json.dumps(document, separators=(",", ":")).encode() + b"\n")

    def put(self, document: Mapping[str, Any]) -> None:
        """Write a line."""
        self.put_frame(self.frame(document))

    def put_frame(self, frame: bytes) -> None:
        """Write what ``frame`` has returned."""
        self._stream.write(frame)
        self._stream.flush()

    def add_interval(self, added: Snapshot) -> None:
        """Write what was added since the last time."""
        self.put({"interval": document_of(added.nonzero()[0])})

    def add_records(self, records: Mapping[str, Any]) -> None:
        """Write what handlers have emitted since the last time."""
        if records:
            self.put({"records": records})

    def end(self, run: Run) -> None:
        """Write the results at the end."""
        for each in run.snapshots:
            self.put({"snapshot": document_of(each)})
        if run.profile is not None:
            self.put({"profile": document_of(run.profile)})
        self.add_records(run.records)
        self.put({"end": {"builds": dict(run.builds)}})


def write(stream: IO[bytes], run: Run) -> None:
    """Write a whole run."""
    writer = Writer(stream, run.info)
    for each in run.series:
        writer.add_interval(each)
    writer.end(run)


def read(path: str) -> Run:
    """Return the run that a file has.

    Raises:
        UsageError: it is no archive, one of a version to come, or damaged; in one line, with the path.
        OSError: it cannot be read.
    """
    from zstandard import ZstdError

    with open(path, "rb") as file:
        try:
            return _run_of(path, _lines(file))
        except (ZstdError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            raise UsageError(f"{path} is a damaged archive ({why})") from None


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the whole lines of a file; one without an end is not given."""
    from zstandard import ZstdDecompressor

    reader = io.BufferedReader(ZstdDecompressor().stream_reader(file, read_across_frames=True))
    while (line := reader.readline(LONGEST_LINE)).endswith(b"\n"):
        yield line
    if len(line) >= LONGEST_LINE:
        raise ValueError(f"a line of more than {LONGEST_LINE:,} bytes")


def _run_of(path: str, lines: Iterator[bytes]) -> Run:
    from zstandard import ZstdError

    try:
        head = json.loads(next(lines, b"{}"))
    except (ZstdError, ValueError):
        head = {}
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise UsageError(f"{path} is no archive of anyprobe; -o RUN.aprobe writes one")
    unknown: set[str] = set()
    info: RunInfo = value_of(RunInfo, head["info"], unknown)
    if head["version"] != VERSION:
        newer = f"anyprobe {info.version}" if info.version else "a newer anyprobe"
        raise UsageError(f"{path} is an archive of version {head['version']}, by {newer}; this one reads {VERSION}")
    series: list[Snapshot] = []
    snapshots: list[Snapshot] = []
    run = Run(info)
    ended = has_calls = False
    for document in map(json.loads, (line for line in lines if not line.startswith(EVENTS))):
        for name, value in document.items():
            match name:
                case "interval":
                    series.append(value_of(Snapshot, value, unknown))
                case "snapshot":
                    snapshots.append(value_of(Snapshot, value, unknown))
                case "profile":
                    run = replace(run, profile=value_of(Profile, value, unknown))
                case "end":
                    ended = True
                    run = replace(run, builds=value_of(_BUILDS, value["builds"]))
                case "records":
                    run = replace(run, records=_with_more(run.records, value_of(_RECORDS, value)))
                case "threads" | "functions" | "lost" | "with" | "left_out" | "clock":
                    has_calls = True  # which ``data/calls/recording.py`` reads
                case _:
                    unknown.add(str(name)[:80])
    warnings = []
    if has_calls and not snapshots:
        raise UsageError(f"{path} has recorded calls, and no tables: anyprobe replay {path}")
    if not ended and not snapshots and not series and run.profile is None:
        raise UsageError(f"{path} ends before there are results: what wrote it was killed, or it was cut")
    if not ended:
        warnings.append(f"{path} ends early, as what wrote it was killed or it was cut; shown is what came before")
        if series:
            run, snapshots = replace(run, info=replace(info, by=None)), [_sum_of(series)]
    if unknown:
        left_out = f"{len(unknown)} fields" if len(unknown) > 1 else "a field"
        by = f" by anyprobe {info.version}" if info.version else ""
        warnings.append(f"{path} was written{by} and has {left_out} not known here: {', '.join(sorted(unknown)[:3])}")
    if run.profile is None and not snapshots:
        raise ValueError("no results")
    return replace(run, snapshots=tuple(snapshots), series=tuple(series), warnings=tuple(warnings))


def _sum_of(series: Sequence[Snapshot]) -> Snapshot:
    """Return the sum of intervals that follow one another; processes and threads are not told apart in it."""
    seconds = sum(each.duration_s for each in series)
    return replace(reduce(Snapshot.merge, series), duration_s=seconds, processes=(), threads=(), interval=None)


def _with_more(records: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a document with the records of another one added, and how many were left out."""
    found: dict[str, Any] = {}
    for name, values in (*records.items(), *more.items()):
        own = found.setdefault(name, {})
        for each, value in values.items():
            own[each] = own[each] + value if each in own else value
    return found


def merged(runs: Sequence[Run]) -> Run:
    """Return the sum of runs: of processes, of machines, of parts of a test.

    Raises:
        UsageError: they are of different kinds.
    """
    kinds = {each.info.command for each in runs}
    if len(kinds) > 1:
        raise UsageError(f"results of {' and '.join(sorted(kinds))} are of different kinds and have no sum")
    builds: dict[str, str] = {}
    changed: list[str] = []
    for run in runs:
        for module, build in run.builds.items():
            if builds.setdefault(module, build) != build:
                changed.append(module)
    hosts = dict.fromkeys(name for each in runs for name in each.info.machine.get("host", "").split(", "))
    ranks = {(each.info.rank, each.info.ranks) for each in runs}
    info = replace(
        runs[0].info,
        rank=runs[0].info.rank if len(ranks) == 1 else None,
        merged=sum(max(each.info.merged, 1) for each in runs),
        version=version("anyprobe"),
        written=_now(),
        machine=runs[0].info.machine if len(hosts) == 1 else {"host": ", ".join(hosts)},
    )
    warnings = [warning for each in runs for warning in each.warnings]
    warnings += different_builds(changed)
    records: Mapping[str, Any] = reduce(_with_more, [each.records for each in runs], {})
    found = Run(info, builds=builds, records=records, warnings=tuple(dict.fromkeys(warnings)))
    profiles = [each.profile for each in runs if each.profile is not None]
    if profiles:
        return replace(found, profile=reduce(Profile.plus, profiles))
    return replace(found, snapshots=(_together([snapshot for each in runs for snapshot in each.snapshots]),))


def merged_of(paths: Sequence[str]) -> Run:
    """Return the sum of the runs in files, by several processes where they are many.

    Raises what ``read`` and ``merged`` raise.
    """
    workers = min(len(os.sched_getaffinity(0)), len(paths) // FEW)
    if workers < 2:
        return _read_and_merged(paths)
    from concurrent.futures import ProcessPoolExecutor

    size = min(math.ceil(len(paths) / workers), MOST_AT_ONCE)
    parts = [paths[at : at + size] for at in range(0, len(paths), size)]
    try:
        with ProcessPoolExecutor(workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
            return merged(list(pool.map(_read_and_merged, parts)))
    except RecursionError:  # a tree of calls is too deep to be handed over
        return merged([_read_and_merged(part) for part in parts])


def _read_and_merged(paths: Sequence[str]) -> Run:
    with collection_paused():
        return merged([read(path) for path in paths])


def _together(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Return the sum of snapshots; of each function all parts are added at once, as histograms are long."""
    functions: dict[Hashable, list[FunctionTiming]] = {}
    for timing in (timing for each in snapshots for timing in each.functions):
        functions.setdefault((timing.spec, timing.module, timing.function, timing.keys), []).append(timing)
    rest = reduce(Snapshot.merge, [replace(each, functions=()) for each in snapshots])
    return replace(rest, functions=tuple(first.merged(*others) for first, *others in functions.values()))


def different_builds(modules: Sequence[str]) -> list[str]:
    """Return what is to be said of modules that are not the same file in all runs."""
    names = ", ".join(dict.fromkeys(modules))
    return [f"other builds of {names}: functions of the same name are taken for the same"] if names else []
