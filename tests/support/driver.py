"""Building and driving the target programs of these tests; see targets/protocol.h for what they speak."""

import fcntl
import hashlib
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TARGETS = Path(__file__).parents[1] / "live" / "targets"
PATIENCE = 180.0
"""Seconds after which a target that does not answer has failed the test."""

NICE = 10
"""The priority of programs that are busy for as long as a test lasts."""


class TargetFailed(AssertionError):  # noqa: N818 - reads as what happened
    """A target crashed, hung, or found a result of its own to be wrong."""


class MissingTool(Exception):  # noqa: N818
    """A compiler that this machine does not have."""


def cache_directory() -> Path:
    """Return where built targets are kept between runs."""
    directory = Path(tempfile.gettempdir()) / f"anyprobe-test-targets-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def build(source: str, *options: str, compiler: str | None = None, text: str | None = None) -> Path:
    """Compile a target (once per content and options) and return the executable.

    ``text`` replaces the file's content, for generated programs; ``source`` then only names the program.
    """
    language = source.rsplit(".", 1)[1]
    compiler = compiler or {"c": "gcc", "cpp": "g++", "go": "go", "rs": "rustc"}[language]
    if not shutil.which(compiler):
        raise MissingTool(compiler)
    content = text if text is not None else (TARGETS / source).read_text()
    headers = [header.read_text() for header in sorted(TARGETS.glob("*.h"))]
    version = os.path.realpath(shutil.which(compiler) or "") if compiler == "go" else ""
    key = hashlib.sha256("\0".join((content, *headers, compiler, version, *options)).encode()).hexdigest()[:16]
    stem = source.rsplit(".", 1)[0]
    executable = cache_directory() / f"{stem}-{key}" / stem
    if executable.exists():
        return executable
    executable.parent.mkdir(exist_ok=True)
    with open(executable.parent / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not executable.exists():  # another process of these tests may have built it meanwhile, and be running it
            _compile(compiler, options, executable.parent / source, content, executable)
    return executable


def _compile(compiler: str, options: Sequence[str], path: Path, content: str, executable: Path) -> None:
    """Write a source to a file and compile it; the executable is there at once and as a whole."""
    path.write_text(content)
    fresh = executable.with_name(f"{executable.name}.{os.getpid()}.{threading.get_ident()}")
    if compiler == "go":
        command = ["go", "build", "-o", str(fresh), *options, str(path)]
    elif compiler == "rustc":
        command = ["rustc", "-O", "-g", "-o", str(fresh), *options, str(path)]
    else:
        standard = ["-O2", "-g", "-pthread", "-I", str(TARGETS)]
        command = [compiler, *standard, str(path), "-o", str(fresh), *options]
    environment = dict(os.environ, GOCACHE=str(cache_directory() / "go"), GO111MODULE="off")
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert outcome.returncode == 0, f"{' '.join(command)}\n{outcome.stderr}"
    fresh.rename(executable)


@dataclass
class Counts:
    """What a target says about itself: its own counts by function."""

    calls: dict[str, int] = field(default_factory=dict)
    returns: dict[str, int] = field(default_factory=dict)
    tails: dict[str, int] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """Read one line of a report."""
        word, name, number = line.split(" ")
        getattr(self, word)[name] = int(number)


class Target:
    """A running target program."""

    def __init__(
        self, argv: Sequence[str | Path], *, process: subprocess.Popen[str] | None = None, **options: object
    ) -> None:
        """Start the program (or take one that runs) and wait until it is ready."""
        self.process: subprocess.Popen[str] = process or subprocess.Popen(  # type: ignore[call-overload]
            [str(word) for word in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        self.counts = Counts()
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.own_pid = int(self._expect("ready").split()[1])
        self.pid = self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:  # which may end long after the test, where a child has it
            for line in lines:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _expect(self, word: str, patience: float = PATIENCE) -> str:
        """Return the next line that starts with ``word``; reports on the way are kept."""
        deadline = time.monotonic() + patience
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                raise TargetFailed(f"no {word!r} within {patience} s: {self._where()}") from None
            if line is None:
                raise TargetFailed(f"the target ended before {word!r}: {self._status()}")
            if line.startswith("BAD"):
                raise TargetFailed(line)
            if line.startswith("unsupported"):
                import pytest

                pytest.skip(line)
            if line.startswith(word):
                return line
            if line.split(" ", 1)[0] in ("calls", "returns", "tails"):
                self.counts.take(line)

    def _status(self) -> str:
        status = self.process.wait(PATIENCE)
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def _where(self) -> str:
        tasks = Path(f"/proc/{self.process.pid}/task")
        try:
            return "; ".join(f"{t.name}: {(t / 'syscall').read_text().strip()}" for t in list(tasks.iterdir())[:8])
        except OSError as error:
            return str(error)

    def send(self, line: str) -> None:
        """Send one command."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self._expect("a reason")
            raise AssertionError("the target answers and does not listen") from None

    def start(self, rounds: int) -> None:
        """Have the target begin ``rounds`` rounds; ``wait_done`` waits for them."""
        self.send(f"go {rounds}")

    def wait_for(self, word: str) -> str:
        """Wait for a line of the target's own that begins with a word, and return it."""
        return self._expect(word)

    def wait_done(self, patience: float = PATIENCE) -> Counts:
        """Wait for the end of what was started and return the counts so far."""
        self._expect("done", patience)
        return self.counts

    def go(self, rounds: int, patience: float = PATIENCE) -> Counts:
        """Run ``rounds`` rounds and return the counts so far."""
        self.start(rounds)
        return self.wait_done(patience)

    def give_way(self) -> None:
        """Have its threads run while others sleep, not instead of them: who probes a busy program needs the time."""
        for tid in os.listdir(f"/proc/{self.pid}/task"):
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(tid), NICE)

    def run_freely(self) -> None:
        """Have the target run rounds until ``halt``."""
        self.give_way()
        self.send("free")
        self._expect("running")

    def halt(self) -> Counts:
        """End a free run and return the counts so far."""
        self.send("")
        return self.wait_done()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Run one round after the other in a ``with`` block: for targets that do not know how to run freely."""
        self.give_way()
        enough = threading.Event()

        def rounds() -> None:
            while not enough.is_set():
                self.go(1)

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(rounds)
            try:
                yield
            finally:
                enough.set()
            running.result()

    def finish(self) -> Counts:
        """End the program; it must be content with all its results."""
        self.send("end")
        self._expect("ok")
        assert self.process.wait(PATIENCE) == 0
        return self.counts

    def answers(self) -> bool:
        """Whether the end of what was started has come; ``wait_done`` then returns at once."""
        with self._lines.mutex:
            return any(line is None or line == "done" or line.startswith("BAD") for line in self._lines.queue)

    def idle(self, seconds: float) -> None:
        """Let ``seconds`` pass, less if the target answers: for random moments, never for hope."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.answers():
            time.sleep(0.001)

    def check_alive(self) -> None:
        """Fail if the program has ended."""
        if has_ended(self.process):
            self._expect("a reason")

    def close(self) -> None:
        """Kill the program if it still runs."""
        if not has_ended(self.process):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(1)
        if self.process.stdin:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


@contextmanager
def started(executable: str | Path, *arguments: str, **options: Any) -> Iterator[Target]:
    """Run a target for the length of a ``with`` block; inside, the test says when it finishes."""
    target = Target([executable, *arguments], **options)
    try:
        yield target
    finally:
        target.close()


def wait_until(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait for a condition, polling; fail with ``what`` after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out waiting until {what}")
        time.sleep(0.002)


_ENDED = frozenset({os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED})


def has_ended(process: subprocess.Popen[str]) -> bool:
    """Whether a child has ended; ``poll`` takes the stop of a thread that a session of this process traces for that."""
    if process.returncode is not None:
        return True
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is not None and found.si_code in _ENDED


def waits_for_input(pid: int) -> bool:
    """Whether the first thread of a process is in the kernel to read its standard input: all before that is done."""
    return Path(f"/proc/{pid}/syscall").read_text().startswith("0 0x0 ")
