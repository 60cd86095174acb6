"""What the kernel permits, and what is said where it does not."""

import ctypes
import errno
import subprocess
import sys

import pytest

from anyprobe.cli import main
from anyprobe.probes.profiling import profiler
from anyprobe.target.kernel import switches
from anyprobe.target.system import gateway

pytestmark = pytest.mark.live
_NO_KERNEL, _FLAGS_AT = 1 << 5, 40
READS = """
import os
zero = os.open("/dev/zero", os.O_RDONLY)
print("ready", flush=True)
while True:
    os.read(zero, 1 << 24)
"""


@pytest.fixture
def busy():
    """A process that spends nearly all of its time in the kernel."""
    with subprocess.Popen([sys.executable, "-c", READS], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        assert process.poll() is None, "the target died"
        process.kill()


@pytest.fixture
def own_programs_only(monkeypatch):
    """Have the kernel permit what it permits an ordinary user at ``perf_event_paranoid`` 2."""
    opened = gateway.perf_event_open

    def permitted(attribute, processor, task=-1):
        flags = ctypes.c_uint64.from_address(attribute + _FLAGS_AT).value
        if not flags & _NO_KERNEL:
            raise OSError(errno.EACCES, "permission denied")
        return opened(attribute, processor, task)

    monkeypatch.setattr(gateway, "perf_event_open", permitted)


def test_an_ordinary_user_has_samples_of_the_program_and_is_told_how_much_was_in_the_kernel(
    busy, own_programs_only, capfd
):
    assert main(["profile", "-p", str(busy.pid), "--for", "1.5"]) == 0
    shown = capfd.readouterr().out
    assert "without time in the kernel" in shown
    assert "of the time on processors is in no sample: it was in the kernel" in shown
    assert "vmlinux" not in shown


def test_an_ordinary_user_is_told_what_it_takes_to_see_functions_of_python(busy, own_programs_only, capfd):
    assert main(["profile", "-p", str(busy.pid), "--for", "0.5"]) == 0
    told = capfd.readouterr()
    assert "Python's functions are not known" in told.err
    assert "be root, or have CAP_PERFMON and CAP_BPF" in told.err


@pytest.mark.root
def test_time_in_the_kernel_is_below_the_function_that_has_called_it(busy):
    found = profiler.profile(busy.pid, duration=1.5)
    assert found.kernel
    assert found.unsampled_share < 0.2
    in_kernel = [each for each in found.stacks if each.frames[0].module == "vmlinux"]
    assert sum(each.count for each in in_kernel) > 0.7 * found.samples
    below = [{frame.function for frame in each.frames} for each in in_kernel]
    assert all("_start" in names for names in below)
    assert any(names & {"read", "__read", "__libc_read"} for names in below)


@pytest.mark.parametrize(
    ("level", "words"),
    [(4, "kernel.perf_event_paranoid is 4"), (2, "seccomp")],
)
def test_where_it_is_not_permitted_there_is_one_line_that_says_what_would_help(busy, level, words, capfd, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EACCES, "permission denied")

    monkeypatch.setattr(gateway, "perf_event_open", refuse)
    monkeypatch.setattr(switches, "has_capability", lambda _: False)
    monkeypatch.setattr(profiler, "paranoia", lambda: level)
    assert main(["profile", "-p", str(busy.pid), "--for", "1"]) == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert words in shown.err
    assert f"process {busy.pid} may not be sampled" in shown.err


def test_less_memory_is_locked_where_more_is_not_permitted(busy, monkeypatch):
    mapped = gateway.mmap_shared

    def limited(descriptor, size, offset=0):
        if size > 200 << 10:
            raise OSError(errno.EPERM, "operation not permitted")
        return mapped(descriptor, size, offset)

    monkeypatch.setattr(gateway, "mmap_shared", limited)
    found = profiler.profile(busy.pid, duration=1.0)
    assert found.samples == pytest.approx(99 * found.processor_s, abs=4 * (99 * found.processor_s) ** 0.5 + 4)


@pytest.mark.parametrize(("arguments", "said"), [
    (["--hz", "0"], "--hz"), (["--by", "function"], "--by"), (["--stack", "4"], "--stack"), ([], "choose a target"),
    (["--format", "pdf", "-p", "1"], "pdf"),
])  # fmt: skip
def test_mistakes(arguments, said, capfd):
    assert main(["profile", *arguments]) == 2
    assert said in capfd.readouterr().err


def test_what_is_not_there_or_no_program():
    pid = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True).stdout
    assert main(["profile", "-p", pid.decode().strip()]) == 1
    assert main(["profile", "-p", "2"]) == 1
