"""tools/guest where there is nothing to boot, and how a kernel is taken out of its boot image."""

import gzip
import lzma
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.fixture
def guests(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import guests.image
    import guests.machine
    import guests.packages

    return guests


@pytest.mark.parametrize("pack", [lambda data: lzma.compress(data, check=lzma.CHECK_CRC32), gzip.compress])
def test_kernel_is_taken_out_of_its_boot_image(guests, pack):
    kernel = b"\x7fELF" + os.urandom(5000)
    packed = pack(kernel) + struct.pack("<I", len(kernel))  # as the kernel's build appends it
    setup = bytearray(1024)
    setup[0x1F1] = 1
    struct.pack_into("<II", setup, 0x248, 40, len(packed))
    assert guests.image.uncompressed(bytes(setup) + bytes(40) + packed) == kernel


def test_unknown_compression_is_said(guests):
    setup = bytearray(1024)
    setup[0x1F1] = 1
    struct.pack_into("<II", setup, 0x248, 0, 8)
    with pytest.raises(guests.errors.GuestUnavailable, match="unknown way"):
        guests.image.uncompressed(bytes(setup) + b"nonsense")


def test_counting_guest_has_one_processor(guests, monkeypatch):
    monkeypatch.setattr(guests.machine, "tool", lambda name: f"/bin/{name}")
    made = guests.image.Image(Path("/cache/6.1"))
    command = guests.machine.Machine(processors=4, counted=True).command(made, Path("/shared"), 3, 4)
    assert command[command.index("-smp") + 1] == "1"
    assert command[command.index("-icount") + 1] == "shift=0,sleep=off"


def test_what_is_missing_is_said_with_a_status_of_its_own(tmp_path):
    # neither apt-get nor QEMU, and nothing in the cache
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    program = "import guests.packages as p; p._ROOT_TOOLS = ''; p.install_tools.__code__ = (lambda: None).__code__\n"
    program += "import sys; sys.argv = ['guest', 'true']; from guests.command import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environment, "PYTHONPATH": str(TOOLS)}, capture_output=True, text=True
    )
    assert done.returncode == 125, done.stderr
    assert done.stderr.splitlines()[-1].startswith("no guest: ")


@pytest.mark.parametrize(("parallel", "threads"), [(False, "tcg,thread=single"), (True, "tcg,thread=multi")])
def test_one_thread_emulates_all_processors_unless_asked_otherwise(guests, monkeypatch, parallel, threads):
    monkeypatch.setattr(guests.machine, "tool", lambda name: f"/bin/{name}")
    made = guests.image.Image(Path("/cache/6.1"))
    command = guests.machine.Machine(parallel=parallel).command(made, Path("/shared"), 3, 4)
    assert command[command.index("-accel") + 1] == threads
    assert command[command.index("-smp") + 1] == "2"


@pytest.mark.parametrize(("parallel", "began", "boots"), [(True, True, 1), (True, False, 3), (False, False, 1)])
def test_guest_that_dies_at_its_start_is_booted_again(guests, monkeypatch, parallel, began, boots):
    booted = []

    def died(_machine, _image, shared):
        booted.append(shared)
        if began:
            (shared / "started").touch()
        return guests.errors.DIED

    monkeypatch.setattr(guests.machine, "_booted", died)
    made = guests.image.Image(Path("/cache/6.1"))
    machine = guests.machine.Machine(parallel=parallel)
    assert guests.machine.run(machine, made, "6.1", "true") == guests.errors.DIED
    assert len(booted) == boots
