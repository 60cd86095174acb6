"""The examples for the kernel, each beside a workload of which it is known what has to be shown."""

import mmap
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "examples" / "kernel"
PATIENCE = 300
SECONDS = "8"
"""For which an example looks, from when its probes are in place."""
pytestmark = pytest.mark.thorough


@pytest.fixture
def shown(tmp_path):
    """Return a function that runs an example, something beside it again and again, and returns what it has printed."""

    def run(name, work, *arguments):
        command = [sys.executable, HERE / name, *arguments]
        with (tmp_path / "shown").open("w+") as file, subprocess.Popen(command, stdout=file, stderr=file) as started:
            deadline = time.monotonic() + PATIENCE
            while started.poll() is None:
                work()
                time.sleep(0.05)
                assert time.monotonic() < deadline, "the example does not end"
            file.seek(0)
            text = file.read()
            assert started.returncode == 0, text
            return text

    return run


def test_new_processes(shown):
    text = shown("new_processes.py", lambda: subprocess.run(["/bin/true"], check=True), SECONDS)
    assert re.search(rf"^ *\d+ +{os.getpid()} true /bin/true$", text, re.MULTILINE)


def test_opens(shown, tmp_path):
    there = tmp_path / "there"
    there.write_text("")

    def work():
        os.close(os.open(there, os.O_RDONLY))
        (tmp_path / "missing").exists()
        with pytest.raises(FileNotFoundError):
            os.open(tmp_path / "missing", os.O_RDONLY)

    text = shown("opens.py", work, SECONDS)
    assert re.search(rf"^{os.getpid()} \S+ \d+ {there}$", text, re.MULTILINE)
    assert re.search(rf"^{os.getpid()} \S+ ENOENT {tmp_path / 'missing'}$", text, re.MULTILINE)


def test_tcp_lives(shown):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def work():
            with socket.create_connection(("127.0.0.1", port)) as near:
                far, _ = server.accept()
                with far:
                    near.sendall(b"x" * 1000)
                    far.recv(1000)

        text = shown("tcp_lives.py", work, SECONDS)
    lives = re.findall(rf"^(\d+) -> {port}: (\d+) us, (\d+) bytes sent$", text, re.MULTILINE)
    assert lives
    # the beginning and the end of a stream count as a byte each
    assert all(1000 <= int(sent) <= 1002 for _, _, sent in lives)


def test_block_latency(shown, tmp_path):
    subprocess.run(["modprobe", "loop"], check=False)
    image = tmp_path / "disk"
    image.write_bytes(bytes(1 << 20))
    found = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True)
    if found.returncode:
        pytest.fail(f"no block device can be made here: {found.stderr}")
    device = found.stdout.strip()
    try:

        def work():
            with open(device, "r+b", buffering=0) as disk:
                disk.write(b"x" * 4096)
                os.fsync(disk.fileno())

        text = shown("block_latency.py", work, SECONDS)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
    assert os.path.basename(device) in text


def test_run_queue_latency(shown):
    assert (
        int(re.search(r"([\d,]+) values", shown("run_queue_latency.py", lambda: None, SECONDS))[1].replace(",", ""))
        > 20
    )


def test_off_cpu(shown):
    def sleeps():
        threading.Thread(target=time.sleep, args=(0.02,)).start()

    assert "hrtimer" in shown("off_cpu.py", sleeps, SECONDS)


def test_system_calls(shown):
    get_parent = 110
    text = shown("system_calls.py", lambda: [os.getppid() for _ in range(1000)], SECONDS)
    name = Path("/proc/self/comm").read_text().strip()
    assert int(re.search(rf"\('{re.escape(name)}', {get_parent}\): ([\d,]+)", text)[1].replace(",", "")) >= 1000


def test_page_faults(shown):
    def touches():
        with mmap.mmap(-1, 1 << 16) as fresh:  # memory that malloc has had before would not fault again
            fresh.write(bytes(len(fresh)))

    name = Path("/proc/self/comm").read_text().strip()
    assert re.search(rf"^ *[1-9]\d*  {re.escape(name)}  ", shown("page_faults.py", touches, SECONDS), re.MULTILINE)


def test_slow_files(shown):
    reads, writes = os.pipe()

    def slow():
        threading.Timer(0.1, os.write, (writes, b"x")).start()
        os.read(reads, 1)

    lines = shown("slow_files.py", slow, SECONDS, "50").splitlines()
    assert any(line.startswith(f"{os.getpid()} ") and "vfs_read" in line for line in lines)


def test_kernel_memory(shown):
    def asks():
        for each in [socket.socket(socket.AF_UNIX) for _ in range(10)]:
            each.close()

    assert re.search(r"'\w+(\+\w+)?': [\d,]+", shown("kernel_memory.py", asks, SECONDS))


def test_each_is_short_and_all_are_tested():
    names = {each.name for each in HERE.glob("*.py")}
    assert all(len((HERE / name).read_text().splitlines()) <= 25 for name in names)
    tests = "".join(each.read_text() for each in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in sorted(names) if name not in tests] == []
