"""Names of addresses in processes that are only looked at: those that have ended have the names that were known."""

import subprocess
from contextlib import ExitStack

from anyprobe.probes.providers.kernel import process_objects
from anyprobe.probes.providers.kernel.process_objects import ProcessObjects
from anyprobe.probes.stacks.symbols import Symbols
from anyprobe.target.system import procfs


def test_addresses_of_a_process_that_has_ended_are_shown_as_numbers():
    with subprocess.Popen(["true"]) as ended:
        pass
    assert Symbols(ProcessObjects(ended.pid)).stack([0x1234, 0x5678]) == "0x1234 < 0x5678"


def test_what_was_known_of_a_process_stays_when_it_has_ended(monkeypatch):
    looked = []
    found = process_objects.loaded_objects
    monkeypatch.setattr(process_objects, "loaded_objects", lambda *a, **b: looked.append(a) or found(*a, **b))
    with subprocess.Popen(["sh", "-c", "echo; read end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        objects = ProcessObjects(process.pid)
        libc = next(each for each in objects.objects if "libc" in each.name)
        place = libc.bias + libc.image.functions.lookup("getppid")[0].start
        objects.refresh()
        assert len(looked) == 1  # nothing was loaded in between
        mapped = procfs.read_mappings(process.pid)
        data = procfs.Mapping(1 << 30, 1 << 31, "rw-p", 0, "00:00", 0, "", False)
        with monkeypatch.context() as patch:
            patch.setattr(procfs, "read_mappings", lambda _: [*mapped, data])
            objects.refresh()
        assert len(looked) == 1  # data has no objects of its own
        process.kill()
    symbols = Symbols(objects)
    assert symbols.name(place).endswith(":getppid")
    assert symbols.name(0x1234) == "0x1234"
    monkeypatch.setattr(procfs, "read_mappings", lambda _: looked.append("of another") or [])
    objects.refresh()
    assert len(looked) == 1  # the number may be another process's now


def test_what_several_processes_have_loaded_is_read_once():
    command = ["sh", "-c", "echo; read end"]
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(2)
        ]
        for each in started:
            each.stdout.readline()
        images = {}
        both = [ProcessObjects(each.pid, images) for each in started]
        for each in started:
            each.stdin.close()
    names = [{each.name: each.image for each in one.objects if each.path.startswith("/")} for one in both]
    assert names[0].keys() == names[1].keys()
    assert all(names[0][name] is names[1][name] for name in names[0])
