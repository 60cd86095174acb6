"""What is kept of an object is used for that object as it was, and for nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anyprobe.binary.images import entries, reconcile
from anyprobe.binary.images.image import Image
from anyprobe.binary.objects import cache, table_store
from anyprobe.core import kept

SOURCE = r"""
int __attribute__((noinline, cold)) rare(int x) { return x * 7; }
static int __attribute__((noinline)) hidden(int x) { return x > 100 ? rare(x) : x + 1; }
int main(int argc, char **argv) { (void)argv; return hidden(argc); }
"""


@pytest.fixture
def program(build, tmp_path):
    return shutil.copy(build(SOURCE, "-O2"), tmp_path / "program")


@pytest.fixture
def builds(monkeypatch):
    """The names of the builders that ran."""
    ran = []
    for module, name in ((reconcile, "reconcile"), (entries, "code_entries")):
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *given, name=name, original=original: (ran.append(name), original(*given))[1]
        )
    return ran


def everything(path, **options):
    """Return all that an object says, as values that can be compared."""
    one = Image.open(str(path), **options)
    text = one.text()
    arrays = (text.function_starts, text.function_ends, text.entries, one.functions.labels)
    found = [array.tolist() for array in arrays]
    return found, text.forbidden, text.noreturn, one.cold_parts, one.functions.all(), one.functions.lookup("hidden")


@pytest.mark.parametrize("path", ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"])
def test_what_is_kept_is_what_was_computed(path, builds):
    fresh = everything(path)
    assert builds
    builds.clear()
    assert everything(path) == fresh
    assert not builds


def test_changed_files_are_read_anew(program, builds, build):
    everything(program)
    build.run("strip", program)  # keeps the build-id
    builds.clear()
    assert everything(program)[-1] == []
    assert builds
    builds.clear()
    status = os.stat(program)
    Path(program).write_bytes(Path(program).read_bytes())
    os.utime(program, ns=(status.st_atime_ns, status.st_mtime_ns))
    everything(program)
    assert builds, "another content may have the same size and the same time of modification"


def test_a_debug_file_that_came_later_is_seen(build, tmp_path):
    whole = build(SOURCE, "-O2")
    program = shutil.copy(whole, tmp_path / "program")
    build.run("strip", program)
    roots = {"debug_roots": (str(tmp_path / "debug"),)}
    assert everything(program, **roots)[-1] == []
    build_id = Image.open(str(program)).build_id
    place = tmp_path / "debug" / ".build-id" / build_id[:2]
    place.mkdir(parents=True)
    shutil.copy(whole, place / f"{build_id[2:]}.debug")
    assert len(everything(program, **roots)[-1]) == 1
    shutil.rmtree(place)
    assert everything(program, **roots)[-1] == []


def test_other_code_of_ours_reads_anew(program, builds, monkeypatch):
    everything(program)
    builds.clear()
    monkeypatch.setattr(table_store, "reader", lambda: 12345)
    everything(program)
    assert builds
    monkeypatch.setattr(table_store, "reader", lambda: 0)  # its files cannot be looked at
    everything(program)
    builds.clear()
    everything(program)
    assert builds


def test_entries_that_contradict_themselves_are_absent(builds):
    path = "/lib/x86_64-linux-gnu/libc.so.6"
    fresh = everything(path)
    build_id = Image.open(path).build_id
    for kind, name, change in [
        ("functions", "symbols", lambda array: array[:4]),
        ("functions", "ends", lambda array: array[:-1]),
        ("codefacts", "parts", lambda array: array[:1]),
        ("codefacts", "forbidden", lambda array: array[:-1]),
        ("codefacts", "reasons", lambda array: array[:-1]),
        ("codefacts", "entries", None),
    ]:
        values, arrays = cache.load(build_id, kind)
        changed = {key: array for key, array in arrays.items() if key != name}
        if change is not None:
            changed[name] = change(arrays[name])
        cache.store(build_id, kind, values, changed)
        builds.clear()
        assert everything(path) == fresh, (kind, name)
        assert builds, (kind, name)


def test_damaged_files_are_absent(program, builds):
    fresh = everything(program)
    for entry in os.listdir(kept.directory()):
        path = os.path.join(kept.directory(), entry)
        content = Path(path).read_bytes()
        for cut in (content[: len(content) // 2], content[:-1] + bytes([content[-1] ^ 1]), b""):
            Path(path).write_bytes(cut)
            builds.clear()
            assert everything(program) == fresh
            assert builds


def test_many_may_write_at_once(program):
    fresh = everything(program)
    shutil.rmtree(kept.directory())
    code = "import sys; from anyprobe.binary.images.image import Image; Image.open(sys.argv[1]).text()"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(program)]) for _ in range(4)]
    assert [writer.wait(180) for writer in writers] == [0] * 4
    assert not [name for name in os.listdir(kept.directory()) if name.startswith(".new-")]
    assert everything(program) == fresh


def test_objects_without_a_file_are_not_kept(program):
    content = Path(program).read_bytes()
    Image.from_bytes("program", content).text()
    assert not os.path.isdir(kept.directory())


def test_what_is_found_while_a_program_waits_is_kept_later(program, builds):
    def interrupted():
        with table_store.keeping_later():
            with table_store.keeping_later():
                found = everything(program)
            assert not [*Path(kept.directory()).glob("*-functions.*")]
            seen.append(found)
            raise KeyboardInterrupt

    seen = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [*Path(kept.directory()).glob("*-functions.*")]
    builds.clear()
    assert [everything(program)] == seen
    assert not builds
