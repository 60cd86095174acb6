"""Other tools on the same target in the same run. What is not there is skipped, with the reason."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from measure import CallTarget

TRACEFS = Path("/sys/kernel/tracing")
MOUNT = ("mount", "-t", "tracefs", "tracefs", str(TRACEFS))


class Missing(Exception):  # noqa: N818
    """A peer that cannot be measured here, and why."""


TRANSLATORS = {"DynamoRIO": ("drrun", "dynamorio"), "Dyninst": ("parseThat", "dyninst")}
"""Tools that could count blocks as well, by the program they come with and what packages of them are called."""


def why_unmeasured(tool: str) -> str:
    """Return why a translator has no figure: where it was looked for, and that it is not there."""
    program, package = TRANSLATORS[tool]
    if where := shutil.which(program):
        return f"{where} is there, and nothing here drives it"
    found = [
        f"no {program} on the PATH",
        f"apt-cache search --names-only {package}: {_first_line('apt-cache', 'search', '--names-only', package)}",
        f"pip index versions {package}: {_first_line(sys.executable, '-m', 'pip', 'index', 'versions', package)}",
    ]
    return f"not installable here ({'; '.join(found)})"


def _first_line(*command: str) -> str:
    """Return the first line that a program has to say, warnings left out, or that it says nothing."""
    try:
        outcome = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    lines = [line for line in (outcome.stdout + outcome.stderr).splitlines() if not line.startswith("WARNING")]
    return lines[0] if lines else "nothing"


class Peer(Protocol):
    """Arms a counter, returns what disarms it."""

    def __call__(self, target: CallTarget, function: str) -> Callable[[], object]:
        """Arm."""
        ...


def file_offset(program: Path, symbol: str) -> int:
    """Return the offset of a function in its file, as uprobes want it."""
    listing = subprocess.run(["nm", str(program)], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"^([0-9a-f]+) [Tt] {re.escape(symbol)}$", listing, re.MULTILINE)
    assert found, symbol
    address = int(found[1], 16)
    segments = subprocess.run(["readelf", "-lW", str(program)], capture_output=True, text=True, check=True).stdout
    for line in segments.splitlines():
        words = line.split()
        if words[:1] == ["LOAD"]:
            offset, virtual, size = int(words[1], 16), int(words[2], 16), int(words[4], 16)
            if virtual <= address < virtual + size:
                return address - virtual + offset
    raise Missing(f"{symbol} lies in no segment")


@contextmanager
def tracefs():
    """Provide tracefs, mounting it for as long as it is needed."""
    mounted = False
    if not (TRACEFS / "uprobe_events").exists():
        outcome = subprocess.run(MOUNT, check=False, capture_output=True, text=True)
        if outcome.returncode:
            raise Missing(f"tracefs cannot be mounted: {outcome.stderr.strip()}")
        mounted = True
    try:
        if not (TRACEFS / "uprobe_events").exists():
            raise Missing("the kernel has no uprobes")
        yield
    finally:
        if mounted:
            subprocess.run(["umount", str(TRACEFS)], check=False, capture_output=True)


def _write(name: str, content: str) -> None:
    descriptor = os.open(TRACEFS / name, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)


def uprobe(target: CallTarget, function: str, *, returns: bool = False) -> Callable[[], object]:
    """Arm a kernel uprobe (and a uretprobe) through tracefs."""
    program = Path(os.readlink(f"/proc/{target.pid}/exe"))
    offset = file_offset(program, function)
    names = ["entry"] + (["exit"] if returns else [])
    _write("uprobe_events", f"p:anyprobe_bench/entry {program}:{offset:#x}\n")
    if returns:
        _write("uprobe_events", f"r:anyprobe_bench/exit {program}:{offset:#x}\n")
    _write("events/anyprobe_bench/enable", "1")

    def disarm() -> None:
        _write("events/anyprobe_bench/enable", "0")
        for name in names:
            _write("uprobe_events", f"-:anyprobe_bench/{name}\n")

    return disarm


FRIDA_SCRIPT = """
const counter = Memory.alloc(8);
const module = new CModule(`
#include <gum/guminterceptor.h>
extern volatile long counter;
void entered(GumInvocationContext *ic) { counter++; }
void left(GumInvocationContext *ic) { counter++; }
`, {counter});
Interceptor.attach(ptr('ADDRESS'), CALLBACKS);
Interceptor.flush();
"""


FRIDA_PROBE = "module.entered"
FRIDA_LISTENER = "{onEnter: module.entered}"
FRIDA_BOTH = "{onEnter: module.entered, onLeave: module.left}"


class Frida:
    """Frida's CModule callbacks: as a probe function (its cheapest form), as a listener, with onLeave."""

    def __init__(self, callbacks: str) -> None:
        """Import it, or say that it is missing."""
        self._callbacks = callbacks
        try:
            import frida
        except ImportError:
            raise Missing("frida is not importable (pip install frida)") from None
        self._frida: Any = frida

    def __call__(self, target: CallTarget, function: str) -> Callable[[], object]:
        """Arm."""
        address = _run_address(target.pid, function)
        session = self._frida.attach(target.pid)
        text = FRIDA_SCRIPT.replace("ADDRESS", hex(address)).replace("CALLBACKS", self._callbacks)
        script = session.create_script(text)
        errors: list[object] = []
        script.on("message", lambda message, _data: errors.append(message))
        script.load()
        if errors:
            session.detach()
            raise Missing(f"frida refuses: {str(errors[0])[:100]}")

        def disarm() -> None:
            script.unload()
            session.detach()

        return disarm


def _run_address(pid: int, symbol: str) -> int:
    program = Path(os.readlink(f"/proc/{pid}/exe"))
    offset = file_offset(program, symbol)
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        where, permissions, at, _, _, *name = line.split(maxsplit=5)
        if name == [str(program)] and "x" in permissions:
            start, end = (int(part, 16) for part in where.split("-"))
            first = int(at, 16)
            if first <= offset < first + end - start:
                return start + offset - first
    raise Missing(f"{symbol} is not mapped")


class Bpftrace:
    """bpftrace counting in a map."""

    def __init__(self) -> None:
        """Find it, or say that it is missing."""
        if not shutil.which("bpftrace"):
            raise Missing("bpftrace is not installed")

    def __call__(self, target: CallTarget, function: str, *, returns: bool = False) -> Callable[[], object]:
        """Arm, and wait until the calls are slower, for bpftrace speaks before it acts."""
        program = os.readlink(f"/proc/{target.pid}/exe")
        text = f"uprobe:{program}:{function} {{ @ = count(); }}"
        if returns:
            text = f"uprobe:{program}:{function} {{ @s[tid] = nsecs; }} uretprobe:{program}:{function} /@s[tid]/ "
            text += "{ @ = hist(nsecs - @s[tid]); delete(@s[tid]); }"
        process = subprocess.Popen(
            ["bpftrace", "-p", str(target.pid), "-e", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        end = time.monotonic() + 20
        while min(max(target.run(function, 1000)) for _ in range(3)) < 150:
            if process.poll() is not None or time.monotonic() > end:
                process.kill()
                raise Missing("bpftrace did not attach")

        def disarm() -> None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)

        return disarm
