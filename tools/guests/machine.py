"""A guest's run: QEMU, the folder that it shares with the guest, the output that it passes on."""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from guests.errors import DIED, TIMED_OUT
from guests.image import Image
from guests.packages import tool

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "XDG_CACHE_HOME", "TERM", "COLUMNS")
_KEPT_PREFIXES = ("ANYPROBE_", "PYTEST_")
_SET_DEATH_SIGNAL = 1
_LAST_LINES = 40
_BOOTS = 3
_BOOT = "console=ttyS0 panic=-1 loglevel=5 no_timer_check"
"""Of the kernel's command line. An emulated timer that is late is no broken one, which the kernel would do without."""
_WATCHDOG_SECONDS = 60
"""Half of what the kernel's watchdog allows a processor to spend without another task: emulated, and on a busy host, it
takes 40 seconds to trace all functions."""


@dataclass(frozen=True)
class Machine:
    """How a guest is built."""

    processors: int = 2
    memory: str = "3G"
    counted: bool = False
    """One processor, and time that counts its instructions: one nanosecond each, exactly repeatable."""
    parallel: bool = False
    """Each processor is a thread of its own. The guest's kernel may then die when it changes its own code.

    QEMU before 8.1 translates instructions while another thread writes them, and keeps what it has read: an ``int3``
    that the kernel had put there for the time of the change runs after the change, and means nothing any more.
    """
    arguments: str = ""
    """More of the kernel's command line."""
    seconds: float = 600

    def command(self, image: Image, shared: Path, output: int, errors: int) -> list[str]:
        """Return QEMU's arguments; the descriptors are what the guest's standard output and error go to."""
        threads = ["tcg,thread=multi"] if self.parallel else ["tcg,thread=single"]
        speed = ["tcg", "-icount", "shift=0,sleep=off"] if self.counted else threads
        folders = (("root", "/", ",readonly=on"), ("tmp", "/tmp", ""), ("run", str(shared), ""))  # noqa: S108 - as asked
        shares: list[str] = []
        for tag, path, options in folders:
            shares += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{options}"]
            shares += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        return [
            tool("qemu-system-x86_64"), "-accel", *speed, "-cpu", "max", "-m", self.memory,
            "-smp", "1" if self.counted else str(self.processors),
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", str(image.kernel), "-initrd", str(image.initrd),
            "-append", f"{_BOOT} watchdog_thresh={_WATCHDOG_SECONDS} {self.arguments}",
            "-serial", f"file:{shared}/console", "-device", "virtio-serial-pci",
            *_stream("out", 1, output), *_stream("err", 2, errors), *shares,
        ]  # fmt: skip


def _stream(name: str, number: int, descriptor: int) -> list[str]:
    # not "stdio": at the end of its input QEMU takes it for closed, and drops what the guest writes
    descriptors = ["-add-fd", f"fd={descriptor},set={number}"]
    device = ["-chardev", f"file,id={name},path=/dev/fdset/{number},append=on"]
    return [*descriptors, *device, "-device", f"virtserialport,chardev={name},name={name}"]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _environment(image: Image, kernel: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    kept |= {
        "ANYPROBE_GUEST": kernel,
        "TMPDIR": "/run/tmp",  # of the guest's own memory; /tmp is the host's, and slower
        "GUEST_MODULES": str(image.modules),
        "GUEST_DIRECTORY": os.getcwd(),
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in kept.items())


class _Pipe:
    """A pipe that a thread passes on to a stream: QEMU takes only descriptors that can be written alone."""

    def __init__(self, to: BinaryIO) -> None:
        reading, self.writing = os.pipe()
        self._thread = threading.Thread(target=self._pass_on, args=[reading, to])

    def start(self) -> None:
        os.close(self.writing)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    @staticmethod
    def _pass_on(source: int, to: BinaryIO) -> None:
        with open(source, "rb", buffering=0) as pipe:
            while part := pipe.read(1 << 16):
                to.write(part)
                to.flush()


def run(machine: Machine, image: Image, kernel: str, command: str) -> int:
    """Run a command in a guest; return its exit status, or that of a guest that has died or was too slow.

    A guest with processors in parallel that dies before the command has begun is booted again; see ``parallel``.
    """
    for _ in range(_BOOTS - 1 if machine.parallel else 0):
        status, began = _once(machine, image, kernel, command)
        if began or status != DIED:
            return status
        print("the guest died before the command began; once more", file=sys.stderr)
    return _once(machine, image, kernel, command)[0]


def _once(machine: Machine, image: Image, kernel: str, command: str) -> tuple[int, bool]:
    """Boot a guest; return the status, and whether the command has begun."""
    with tempfile.TemporaryDirectory(prefix="anyprobe-guest-") as folder:
        shared = Path(folder)
        (shared / "command").write_text(command + "\n")
        (shared / "environment").write_text(_environment(image, kernel))
        shutil.copy(Path(__file__).with_name("run.sh"), shared)
        status = _booted(machine, image, shared)
        return status, (shared / "started").exists()


def _booted(machine: Machine, image: Image, shared: Path) -> int:
    pipes = _Pipe(sys.stdout.buffer), _Pipe(sys.stderr.buffer)
    descriptors = [each.writing for each in pipes]
    started = subprocess.Popen(
        machine.command(image, shared, *descriptors), stdin=subprocess.DEVNULL, pass_fds=descriptors,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - no thread is running now
    )  # fmt: skip
    for each in pipes:
        each.start()
    try:
        return _status(started, machine.seconds, shared)
    finally:
        started.kill()
        started.wait()
        for each in pipes:
            each.join()


def _status(started: "subprocess.Popen[bytes]", seconds: float, shared: Path) -> int:
    try:
        started.wait(seconds)
    except subprocess.TimeoutExpired:
        print(f"the guest was not done after {seconds:g} s", file=sys.stderr)
        return TIMED_OUT
    status = shared / "status"
    if status.exists():
        return int(status.read_text())
    console = shared / "console"
    lines = console.read_text(errors="replace").splitlines() if console.exists() else []
    print("\n".join(["the guest died; the end of its console:", *lines[-_LAST_LINES:]]), file=sys.stderr)
    return DIED
