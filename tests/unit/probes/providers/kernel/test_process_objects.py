"""Names of addresses in processes that are only looked at: those that have ended have the names that were known."""

import subprocess

from anyprobe.probes.providers.kernel import process_objects
from anyprobe.probes.providers.kernel.process_objects import ProcessObjects
from anyprobe.probes.symbols import Symbols


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
        process.kill()
    symbols = Symbols(objects)
    assert symbols.name(place).endswith(":getppid")
    assert symbols.name(0x1234) == "0x1234"
