"""Real programs as filters, input to output: run plainly, or with probes attached while they wait for their input."""

import collections
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import anyprobe
from anyprobe.binary.objects.elf import PT_INTERP, ElfFile
from anyprobe.data.snapshots.snapshot import FunctionTiming
from anyprobe.target.system.procfs import read_stat
from support.driver import wait_until

READY = b"ready\n"
PATIENCE = 170
LEVELS = {
    "entries": ("*:*",),
    "exits": ("*:*", "*:*%return"),
    "blocks": ("*:*:block",),
    "instructions": ("*:*:insn",),
    "timed": ("*:*",),
    "self times": ("*:*",),
}
EACH = {"blocks": "block", "instructions": "insn"}
TIMED: dict[str, dict[str, Any]] = {"timed": {}, "self times": {"self_time": True}}
"""Further levels: all functions timed, and the options that a session then needs."""
Arm = Callable[["anyprobe.Session"], object]


@dataclass(frozen=True)
class Filter:
    """A program that works on its standard input once that is there; ``announces`` that it waits, or just reads."""

    name: str
    argv: tuple[str | Path, ...]
    given: bytes
    announces: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    patience: float = PATIENCE
    """Seconds that it may take."""

    def _options(self) -> dict[str, Any]:
        return {"stdout": subprocess.PIPE, "env": {**os.environ, "PYTHONHASHSEED": "0", **self.environment}}

    def plain(self) -> bytes:
        """Return the output without any probe."""
        if not shutil.which(self.argv[0]):
            pytest.skip(f"needs {self.argv[0]}")
        outcome = subprocess.run(self.argv, input=self.given, timeout=self.patience, **self._options())
        assert outcome.returncode == 0
        return outcome.stdout

    def probed(self, arm: Arm, **options: Any) -> tuple[bytes, "anyprobe.Snapshot"]:
        """Return the output, and what was counted, with probes that ``arm`` places while the program waits.

        ``options`` are the session's.
        """
        with subprocess.Popen(self.argv, bufsize=0, stdin=subprocess.PIPE, **self._options()) as process:
            try:
                seen = self._await(process)
                with anyprobe.attach(process.pid, **options) as session:
                    arm(session)
                    output = self._talk(process)
                    snapshot = session.snapshot()
                assert process.wait() == 0, f"{self.name} ended with {process.returncode}"
            finally:
                if process.poll() is None:
                    process.kill()
        return seen + output, snapshot

    def _talk(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return what the program says to its input, once it has ended: ``wait`` would take stops for that."""
        said: list[bytes] = []
        threads = [
            threading.Thread(target=_feed, args=(os.dup(process.stdin.fileno()), self.given), daemon=True),
            threading.Thread(target=lambda: said.append(process.stdout.read()), daemon=True),
        ]
        process.stdin.close()
        for each in threads:
            each.start()
        wait_until(lambda: said and read_stat(process.pid).ended, f"{self.name} ends", self.patience)
        return said[0]

    def started(self, arm: Arm, **options: Any) -> tuple[bytes, "anyprobe.Snapshot"]:
        """Return the same of the program started with probes that ``arm`` places before its first instruction."""
        argv = [str(each) for each in self.argv]
        reader, writer = os.pipe()  # some programs tell a pipe from a file
        feeder = threading.Thread(target=_feed, args=(writer, self.given), daemon=True)
        with os.fdopen(reader) as source, tempfile.TemporaryFile() as output:
            given = {**self._options(), "stdin": source, "stdout": output}
            with anyprobe.run(argv, **given, **options) as session:
                feeder.start()
                arm(session)
                session.resume()
                status = session.wait(self.patience)
                snapshot = session.snapshot()
            assert status == 0, f"{self.name} ended with {status}"
            feeder.join()
            output.seek(0)
            return output.read(), snapshot

    def _await(self, process: subprocess.Popen[bytes]) -> bytes:
        if not self.announces:
            wait_until(lambda: reads_input(process.pid), f"{self.name} reads its input")
            return b""
        seen = b""
        while not seen.endswith(READY):
            piece = process.stdout.read(1)
            assert piece, f"{self.name} ended early"
            seen += piece
        return seen


def _feed(writer: int, given: bytes) -> None:
    with os.fdopen(writer, "wb") as pipe, contextlib.suppress(BrokenPipeError):  # its reader may end early
        pipe.write(given)


def reads_input(pid: int) -> bool:
    """Whether a thread of a process sleeps in read(0, ...), or in poll."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        words = (task / "syscall").read_text().split()
        if words[0] in ("7", "271") or words[:2] == ["0", "0x0"]:
            return True
    return False


def place(session: "anyprobe.Session", level: str, *specs: str) -> None:
    """Have all that a level is of counted, or what ``specs`` mean.

    Functions that are timed have their entries counted, too, and the session learns meanwhile where they return to.
    """
    specs = specs or LEVELS[level]
    if level in TIMED:
        session.time(*specs)
    session.count(*specs)
    if level in TIMED:
        session.pump_in_background()


def probed_at(program: Filter, level: str, *specs: str) -> tuple[bytes, "anyprobe.Snapshot"]:
    """Return the output, and what was counted, with all that a level is of counted or timed, or what ``specs`` mean."""
    return program.probed(lambda session: place(session, level, *specs), **TIMED.get(level, {}))


def started_at(program: Filter, level: str, *specs: str) -> tuple[bytes, "anyprobe.Snapshot"]:
    """Return the same of a program that is started with its probes in place."""
    return program.started(lambda session: place(session, level, *specs), **TIMED.get(level, {}))


def check_level(
    name: str,
    level: str,
    snapshot: "anyprobe.Snapshot",
    least: float,
    before: "anyprobe.Snapshot | None" = None,
    on_other_stacks: Collection[str] = (),
) -> None:
    """Fail where less than a share is counted, hits were missed, or the times do not fit the counts.

    ``before``: of a program that makes calls while it is probed, once all is in place; see ``stopped``.
    ``on_other_stacks``: Go functions whose calls are not on their goroutine's stack, and all missed.
    """
    assert print_shares(f"{name}, {level}", snapshot) > least
    assert snapshot.hits > 10
    missed = sum(each.nmissed for each in snapshot.functions if each.function in on_other_stacks)
    assert snapshot.nmissed == missed
    if level in TIMED:
        check_timings(f"{name}, {level}", snapshot, before, on_other_stacks)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Have a process stand still, so that all that is read of it is of one moment."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: read_stat(pid).state == "T", "the process stops")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def unaccounted(snapshot: "anyprobe.Snapshot") -> dict[int, int]:
    """Return how many more entries than calls that have ended, or go on, were counted of each function."""
    entered = {site.address: site.hits for site in snapshot.sites if site.kind == "entry"}
    found = {}
    for each in snapshot.functions:
        calls = _accounted(each)
        found[each.address] = entered.get(each.address, calls) - calls  # a few entries have room for one probe
    return found


def _accounted(each: FunctionTiming) -> int:
    return each.count + each.tail_exits + each.learning + each.nmissed + each.in_flight + each.left


def cut_short(snapshot: "anyprobe.Snapshot") -> collections.Counter[int]:
    """Return how many entries of each function were a fork child's last: it was killed before the call was noted.

    Fails where a child has more than one entry that is not accounted for.
    """
    entries = {site.address for site in snapshot.sites if site.kind == "entry"}
    timed = {each.spec: each.address for each in snapshot.functions if each.address in entries}
    found: collections.Counter[int] = collections.Counter()
    for process in snapshot.processes[1:]:
        more: collections.Counter[int] = collections.Counter()
        for (spec, *_, kind), hits in process.hits.items():
            if kind == "entry" and spec in timed:
                more[timed[spec]] += hits
        for each in process.functions:
            if each.address in entries:
                more[each.address] -= _accounted(each)
        last = {address: number for address, number in more.items() if number}
        assert list(last.values()) in ([], [1]), (process.process, last)
        found.update(last)
    return found


def check_timings(
    name: str,
    snapshot: "anyprobe.Snapshot",
    before: "anyprobe.Snapshot | None" = None,
    on_other_stacks: Collection[str] = (),
    *,
    jumps_out: bool = False,
    kills: int = 0,
) -> None:
    """Fail where not each call that was entered is accounted for; print how many were timed, and what was refused.

    ``jumps_out``: the program calls ``longjmp`` in what its functions have jumped to. ``kills``: it kills so many
    children of its own, or fewer.
    """
    functions = snapshot.functions
    count, learning, jumps = (sum(getattr(f, word) for f in functions) for word in ("count", "learning", "tail_exits"))
    refused = collections.Counter(str(each.reason) for each in snapshot.refused if each.timed)
    print(f"{name}: {count} calls of {len(functions)} functions timed; {learning} learning, {jumps} left by jumps")
    print(f"{name}: not timed: {', '.join(f'{why} {number}' for why, number in refused.most_common())}")
    # parts are no functions, and Go's assembly none of Go's
    others = refused["part-of-a-function"] + refused["go-timing"]
    if functions or not is_static(snapshot.target.exe):
        assert len(functions) > 9 * (refused.total() - others)
    else:  # but for those whose exits are not known, all are refused for that
        assert refused["no-thread-slot"] > 0.8 * (refused.total() - others)
    earlier, more = {} if before is None else unaccounted(before), unaccounted(snapshot)
    if jumps_out:
        missed = [each for each in functions if each.nmissed]
        print(f"{name}: {sum(each.nmissed for each in missed)} calls left in what they had jumped to")
        assert all(any(place.exit_kind == "tail" for place in each.places) for each in missed)
        assert sum(each.nmissed for each in missed) < count / 10_000
    if kills:
        killed = cut_short(snapshot)
        print(f"{name}: {killed.total()} children killed at an entry")
        assert killed.total() <= kills
        more = {address: number - killed[address] for address, number in more.items()}
    given_up = {each.address for each in snapshot.refused if each.timed}
    for each in functions:
        told = name, each.function, more[each.address], dataclasses.replace(each, places=())
        if each.function in on_other_stacks:
            assert each.count == each.tail_exits == each.learning == each.in_flight == each.left == 0, told
        else:
            assert each.nmissed == 0 or jumps_out, told
        assert sum(calls for _, _, calls in each.buckets) == each.count, told
        if each.address in given_up and not any(end.armed for end in each.places):
            # the program handles faults since, and what may fault has to be displaced alone
            assert more[each.address] >= earlier.get(each.address, 0), told
        elif each.nested or not each.in_flight:
            assert more[each.address] == earlier.get(each.address, 0), told
        if each.count:
            mean = each.sum_ns / each.count
            assert 0 <= each.min_ns <= mean * (1 + 1e-9), told  # calls that all take as long may have a mean just below
            assert mean <= each.max_ns * (1 + 1e-9), told
    if all(each.nested and not each.in_flight for each in functions):
        own, roots = (sum(getattr(each.nested, word) for each in functions) for word in ("self_ns", "root_ns"))
        assert own == pytest.approx(roots, rel=1e-9, abs=1e-3)


def is_static(exe: str) -> bool:
    """Return whether a program brings its own C library: nothing is timed in it, where no thread has a slot."""
    return all(each.kind != PT_INTERP for each in ElfFile.open(exe).segments)


def functions_run(snapshot: "anyprobe.Snapshot") -> list[tuple[str, str]]:
    """Return module and name of each function that was entered."""
    return sorted({(site.module, site.function) for site in snapshot.sites if site.kind == "entry" and site.hits})


def sample(functions: Sequence[tuple[str, str]], most: int, seed: int | None = None) -> Sequence[tuple[str, str]]:
    """Return some functions, without a seed others each time, and print by what seed they were chosen."""
    if len(functions) <= most:
        return functions
    seed = random.randrange(1 << 32) if seed is None else seed
    print(f"{most} of {len(functions)} functions, seed {seed}")
    return random.Random(seed).sample(functions, most)


def specs_of(session: "anyprobe.Session", functions: Iterable[tuple[str, str]], level: str) -> list[str]:
    """Return the specs of blocks or instructions of functions; one that shares its name is meant with its namesakes."""
    specs = []
    for module, name in functions:
        spec = f"pid:{module}:{name}:{EACH[level]}"
        try:
            session.resolve(spec)
        except anyprobe.SpecError:
            spec = f"pid:{module}:[{name[0]}]{name[1:]}:{EACH[level]}"
        specs.append(spec)
    return specs


def print_shares(name: str, snapshot: "anyprobe.Snapshot") -> float:
    """Print strategies and refusals; return the share of sites that are counted, or were while the program ran.

    Functions that are timed are told of by ``check_timings``.
    """
    over = not snapshot.target.alive
    chosen = collections.Counter(str(site.strategy) for site in snapshot.sites if site.armed or over)
    refused = collections.Counter(str(each.reason) for each in snapshot.refused if not each.timed)
    total = sum(chosen.values()) + sum(refused.values())
    shares = ", ".join(f"{k} {v} ({100 * v / total:.2f} %)" for k, v in chosen.most_common())
    why = ", ".join(f"{k} {v}" for k, v in refused.most_common()) or "nothing"
    print(f"{name}: {total} sites: {shares}; refused: {why}; hits {snapshot.hits}, missed {snapshot.nmissed}")
    return sum(chosen.values()) / total


def run_at(program: Filter, level: str, functions: Sequence[tuple[str, str]], most: int) -> bytes:
    """Return the output with the blocks or instructions of functions, ``most`` at most, counted; print the shares."""
    chosen = sample(functions, most)
    output, snapshot = program.probed(lambda session: session.count(*specs_of(session, chosen, level)))
    print_shares(f"{program.name}, {level} of {len(chosen)} functions", snapshot)
    assert snapshot.hits > 100
    assert snapshot.nmissed == 0
    return output
