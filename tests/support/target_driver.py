"""Starting the programs of ``target_programs/`` and asking them whether they are well."""

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.driver import build

PROGRAMS = Path(__file__).parents[1] / "live" / "target_programs"
PATIENCE = 180.0


class Program:
    """A running program that speaks in lines."""

    def __init__(self, name: str, *arguments: str, compiler: str = "gcc", options: tuple[str, ...] = ()) -> None:
        source = f"{name}.c"
        executable = build(source, "-O1", *options, compiler=compiler, text=(PROGRAMS / source).read_text())
        self.child = subprocess.Popen(
            [str(executable), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.pid = self.child.pid
        self._rest = b""

    def line(self, patience: float = PATIENCE) -> str:
        """Return the next line of output."""
        deadline = time.monotonic() + patience
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.child.stdout], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no answer; the program is in state {self.state()}"
            part = os.read(self.child.stdout.fileno(), 65536)
            assert part, f"ended with status {self.child.wait()}; said {self._rest!r}"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        text = line.decode()
        assert not text.startswith("FAILED"), text
        return text

    def ask(self) -> str:
        """Send a byte and return the answer."""
        with contextlib.suppress(BrokenPipeError):  # what it said before it ended is the better message
            self.child.stdin.write(b"?")
        return self.line()

    def state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def is_free(self) -> bool:
        """Whether none of its threads is traced."""
        return all("TracerPid:\t0" in task.read_text() for task in Path(f"/proc/{self.pid}/task").glob("*/status"))


@contextmanager
def running(name: str, *arguments: str, **how: object) -> Iterator[Program]:
    """Run a program for a scope."""
    program = Program(name, *arguments, **how)
    try:
        yield program
    finally:
        program.child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one of its threads may still be traced, by a failed test
            program.child.wait(5)
        program.child.stdin.close()
        program.child.stdout.close()
