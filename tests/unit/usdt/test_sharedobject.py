"""Shared objects with markers: what anyprobe, readelf and the loader read in them."""

import ctypes
import subprocess

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.markers import read_markers
from anyprobe.usdt.sharedobject import NotedMarker, shared_object

MARKERS = [NotedMarker("app", f"probe__{n}", "8@%rdi -4@%esi") for n in range(40)]


def test_every_marker_is_read_with_its_place_and_its_semaphore():
    content = shared_object("app.so", MARKERS)
    read = read_markers(ElfFile("app.so", content))
    assert not read.damaged
    assert [(each.provider, each.name) for each in read.found] == [("app", each.name) for each in MARKERS]
    assert [" ".join(map(str, each.arguments)) for each in read.found] == [each.arguments for each in MARKERS]
    places, guards = [{getattr(each, what) for each in read.found} for what in ("location", "semaphore")]
    assert len(places) == len(guards) == len(MARKERS)
    assert {content[each] for each in places} == {0x90}


def test_readelf_finds_nothing_wrong(tmp_path):
    path = tmp_path / "app.so"
    path.write_bytes(shared_object("app.so", MARKERS))
    outcome = subprocess.run(["readelf", "-aW", path], capture_output=True, text=True)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.count("NT_STAPSDT") == len(MARKERS)
    assert "Warning" not in outcome.stdout
    assert "NT_GNU_BUILD_ID" in outcome.stdout


def test_the_loader_loads_it_and_finds_every_name(tmp_path):
    path = tmp_path / "app.so"
    path.write_bytes(shared_object("app.so", MARKERS))
    loaded = ctypes.CDLL(str(path))
    for each in MARKERS:
        getattr(loaded, each.function)()
        assert ctypes.c_uint16.in_dll(loaded, each.semaphore).value == 0
