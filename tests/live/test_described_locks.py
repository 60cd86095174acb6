"""``anyprobe locks --described``: locks that a program makes by itself, beside what it has noted of them."""

import json

import pytest

from anyprobe.binary.images.text_tables import texts_from
from anyprobe.binary.objects.elf import ElfFile
from live.test_command_line import anyprobe as command
from live.test_schemas import checked
from support.driver import build

pytestmark = pytest.mark.live
NEAR, SLICES_NS = 0.05, 20_000_000
"""A thread may lose its processor between the program's reading of the clock and anyprobe's."""
DESCRIPTION = """
[[lock]]
name = "own"
module = "a.out"
take = ["own_take"]
try = ["own_try"]
release = ["own_release"]
sleep = ["own_sleep"]
"""
NUMBERED = """
[lock.number]
offset = 6
bytes = 2
names = { 1 = "journal" }
"""
BUILDS = {
    "as it is": ("-O1",),
    "debug information": ("-O1", "-g"),
    "not relocated": ("-O1", "-no-pie"),
    "stripped": ("-O1", "-rdynamic", "-s"),
}


@pytest.fixture(params=BUILDS.values(), ids=BUILDS)
def program(request):
    return str(build("own_locks.c", "-pthread", *request.param))


def measured(tmp_path, program, description):
    (tmp_path / "own.toml").write_text(description)
    results = tmp_path / "results.json"
    words = ["locks", "--described", str(tmp_path / "own.toml"), "--json", "-o", str(results)]
    found = command(*words, "--", program, input="\n")
    assert found.returncode == 0, found.stderr
    document = json.loads(results.read_text())
    checked("locks", document)
    own = [each for each in document["locks"] if each["kind"] == "described"]
    return json.loads(found.stdout), own


def test_locks_of_one_number_are_one_by_its_name_and_their_times_are_the_program_s(tmp_path, program):
    truth, found = measured(tmp_path, program, DESCRIPTION + NUMBERED)
    assert {each["symbol"] for each in found} == {"own journal", "own pages"}
    for each in found:
        own = truth[each["symbol"].removeprefix("own ")]
        assert each["acquisitions"] == own["taken"]
        assert each["contended"] == own["waits"]
        assert each["wait_ns"] == pytest.approx(own["waited"], rel=NEAR, abs=SLICES_NS)
        assert each["hold_ns"] == pytest.approx(own["held"], rel=NEAR, abs=SLICES_NS)
        assert each["holds"] == own["taken"]
    (journal,) = (each for each in found if each["symbol"] == "own journal")
    assert any("runs" in frame or "own_locks" in frame for each in journal["waiters"] for frame in each["stack"])


def test_without_a_number_each_lock_is_its_own(tmp_path):
    truth, found = measured(tmp_path, str(build("own_locks.c", "-pthread", "-O1")), DESCRIPTION)
    assert sorted(each["symbol"] for each in found) == [
        "own own_locks:locks",
        "own own_locks:locks+0x18",
        "own own_locks:locks+0x30",
    ]
    assert sum(each["acquisitions"] for each in found) == sum(each["taken"] for each in truth.values())


WITHIN = """
#include <pthread.h>
#include <stdio.h>
#define CALL __attribute__((noinline, noclone, noipa))
typedef struct { pthread_rwlock_t inner; } own_lock;
static own_lock lock = {PTHREAD_RWLOCK_INITIALIZER};
CALL void own_take(own_lock *own) { pthread_rwlock_wrlock(&own->inner); __asm__(""); }
CALL void own_release(own_lock *own) { pthread_rwlock_unlock(&own->inner); __asm__(""); }
int main(void) {
    getchar();
    for (int n = 0; n < 100; n++) own_take(&lock), own_release(&lock);
    puts("{}");
    return 0;
}
"""


def test_a_lock_and_one_of_the_c_library_that_it_begins_with_are_two(tmp_path):
    description = DESCRIPTION.replace('try = ["own_try"]\n', "").replace('sleep = ["own_sleep"]\n', "")
    _, (found,) = measured(tmp_path, str(build("own_within.c", "-O1", "-pthread", text=WITHIN)), description)
    assert (found["acquisitions"], found["holds"]) == (100, 100)
    every = json.loads((tmp_path / "results.json").read_text())["locks"]
    (inner,) = (each for each in every if each["address"] == found["address"] and each["kind"] != "described")
    assert (inner["acquisitions"], inner["holds"]) == (100, 100)


def test_tables_of_texts_are_read_from_files(program):
    elf = ElfFile.open(program)
    assert texts_from(elf, "nothing")[:3] == ["nothing", "journal", "pages"]
    assert texts_from(elf, "no such text") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a description has [[lock]], and nothing else beside"),
        ("[[lock]\n", "cannot be read"),
        ('[[lock]]\nname = "x"\n', "the 'module' that its functions are in"),
        ('[[lock]]\nname = "x"\nmodule = "a.out"\n', "has functions that 'take' it"),
        ('[[lock]]\nname = "x"\nmodule = "a.out"\ntake = "f"\n', "'take' is a list of functions"),
        ('[[lock]]\nname = "x"\nmodule = "a.out"\ntakes = ["f"]\n', "a lock has no 'takes'"),
        (DESCRIPTION + "[lock.number]\noffset = 1\nbytes = 3\n", "bytes' of 1, 2 or 4"),
        (DESCRIPTION + "[lock.number]\noffset = 3\nbytes = 2\n", "bytes' of 1, 2 or 4"),
        (None, "there is no such description; known by name: postgresql"),
    ],
)
def test_what_is_wrong_with_a_description_is_one_line(tmp_path, text, said):
    path = tmp_path / "own.toml"
    if text is not None:
        path.write_text(text)
    found = command("locks", "--described", str(path), "--", "/bin/true")
    assert found.returncode == 2
    assert said in found.stderr.splitlines()[0]


def test_a_program_that_has_none_of_them_is_measured_without(tmp_path):
    (tmp_path / "own.toml").write_text(DESCRIPTION.replace("own_", "other_"))
    found = command("locks", "--described", str(tmp_path / "own.toml"), "--", "/bin/true")
    assert found.returncode == 0
    assert "own: " in found.stderr
