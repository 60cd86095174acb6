"""USDT markers of running programs: found, listed and counted, whatever forms their notes have."""

import json
import re
import subprocess
import sys

import pytest

import anyprobe
from anyprobe import SpecError, Sum
from support.driver import PATIENCE, build, started

pytestmark = pytest.mark.live


@pytest.fixture
def target():
    with started(build("marked.c")) as running:
        yield running


def hits(session):
    """Return the hits by marker, all places of one together."""
    return {site.label: site.hits for site in session.snapshot().folded().sites}


def test_every_marker_is_counted_exactly_and_the_red_zone_is_left_alone(target):
    with anyprobe.attach(target.pid) as session:
        session.count("usdt:marked/forms:*", "usdt:*:many__times")
        counts = target.go(200)
        found = hits(session)
        assert found.pop("places:many-times") == 3 * counts.calls["several"] == 600
        assert len(found) == 13
        assert set(found.values()) == {200}
    target.go(5)
    target.finish()


def test_all_places_of_a_name_are_one_probe(target):
    with anyprobe.attach(target.pid) as session:
        (probe,) = session.count("usdt:places:many-times")
        assert len(probe.places) == 3
        target.go(10)
        assert [site.hits for site in session.snapshot().sites] == [10, 10, 10]
        session.remove(probe)
        target.go(10)
        session.enable(probe)
        target.go(1)
        assert hits(session) == {"places:many-times": 33}
    target.finish()


@pytest.mark.parametrize(
    "spec",
    [
        "usdt:marked:widths",
        "usdt:forms:widths",
        "usdt:marked/forms:widths",
        "usdt:a.out:forms:widths",
        "usdt:marked/forms:widths:widths",
        "sdt_forms:widths",
        "usdt:widths",
        "usdt:f*:w?dths",
    ],
)
def test_each_form_of_a_spec_means_the_marker(target, spec):
    with anyprobe.attach(target.pid) as session:
        session.count(spec)
        target.go(3)
        (site,) = session.snapshot().sites
        assert (site.spec, site.hits, site.kind, site.function) == ("usdt:marked/forms:widths", 3, "usdt", "widths")


def test_bpftraces_forms_with_a_path(target):
    path = build("marked.c")
    with anyprobe.attach(target.pid) as session:
        session.count(f"usdt:{path}:forms:widths", f"usdt:{path}:twelve")
        target.go(2)
        assert hits(session) == {"forms:widths": 2, "forms:twelve": 2}


def test_names_in_quotes_and_the_canonical_spec_mean_the_same(target):
    with anyprobe.attach(target.pid) as session:
        session.count('usdt:"odd provider":"a:name"')
        target.go(2)
        (site,) = session.snapshot().sites
        assert site.hits == 2
        (again,) = session.count(site.spec)
        assert len(again.places) == 1


@pytest.mark.parametrize(
    ("spec", "message", "nearest"),
    [
        ("usdt:forms:width", "no marker 'width' of forms", "widths"),
        ("usdt:form:widths", "no provider 'form' of USDT markers", "forms"),
        ("usdt:ld-linux-x86-64.so.2:rtld:setjmp", "no USDT markers in ld-linux-x86-64.so.2", ""),
    ],
)
def test_a_marker_that_is_not_there_is_an_error_with_what_is_near(target, spec, message, nearest):
    with anyprobe.attach(target.pid) as session, pytest.raises(SpecError, match=message) as caught:
        session.count(spec)
    assert nearest in str(caught.value)


def test_a_damaged_note_is_warned_of_and_the_others_work():
    broken = (
        'int main_note; __asm__(".pushsection .note.stapsdt,\\"\\",\\"note\\"\\n.balign 4\\n.4byte 8, 4, 3\\n"\n'
        '".asciz \\"stapsdt\\"\\n.4byte 0\\n.popsection\\n");\n'
    )
    text = (build("marked.c").parent / "marked.c").read_text() + broken
    with started(build("damaged_marker.c", text=text)) as target, anyprobe.attach(target.pid) as session:
        session.count("usdt:forms:*")
        assert any("is too short (4 bytes)" in each for each in session.warnings)
        target.go(3)
        assert set(hits(session).values()) == {3}


def test_list_shows_arguments_semaphores_and_places(target):
    with anyprobe.attach(target.pid) as session:
        found = {(site.spec, site.offset): site for site in session.list("usdt:*")}
        assert not session.splicing.access.touched
    several = [site for (spec, _), site in found.items() if spec == "usdt:marked/places:many-times"]
    assert [site.marker.arguments[0].text for site in several][::2] == ["-8@%rdi", "-4@$-3"]
    (unknown,) = [site for site in found.values() if site.marker and site.marker.name == "unknown"]
    assert [each.type for each in unknown.marker.arguments] == ["i32", None, "i32"]
    assert "no register that can be read" in unknown.marker.arguments[1].problem
    guards = {
        site.marker.name: site.marker.semaphore for site in found.values() if site.marker and site.marker.semaphore
    }
    assert guards["first"] == guards["second"] != guards["alone"]
    (closed,) = [site for site in found.values() if site.refusal is not None]
    assert (closed.spec, closed.refusal.reason.value) == ("usdt:marked/guards:closed", "semaphore-not-writable")


def command(*words):
    """Run the command line and return what it prints."""
    outcome = subprocess.run(
        [sys.executable, "-m", "anyprobe", *map(str, words)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_the_command_line_lists_counts_and_looks_at_arguments(target):
    target.run_freely()
    listed = command("list", "-p", target.pid, "usdt:*")
    assert re.search(r"usdt:marked/forms:floats +jump +\(arg0: f64, arg1: f32, .*\) in floats\+0x", listed)
    assert re.search(r"usdt:marked/guards:alone .*\(arg0: i32\) in guarded\+0x\w+, semaphore 0x", listed)
    (site,) = json.loads(command("list", "-p", target.pid, "usdt:forms:low", "--json"))["sites"]
    assert site["marker"]["arguments"][1] == {"name": "arg1", "type": "u64", "operand": "8@%rcx"}

    counted = command("count", "-p", target.pid, "--for", 0.2, "usdt:places:*")
    assert len(re.findall(r"places:many-times", counted)) == 1
    document = json.loads(command("count", "-p", target.pid, "--for", 0.2, "usdt:places:*", "--json"))
    assert [each["kind"] for each in document["sites"]] == ["usdt"] * 3

    for seconds in (0.2, 2, 20):  # in which a busy machine may not have the program run
        negative = ("-p", target.pid, "--for", seconds, "usdt:places:*", "--when", "arg0 < 0")
        document = json.loads(command("count", *negative, "--json"))
        values = command("hist", *negative, "--of", "arg0")
        if any(each["hits"] for each in document["sites"]) and "max -3" in values:
            break
    assert sorted(each["hits"] > 0 for each in document["sites"]) == [False, False, True]
    assert "max -3" in values

    spec = 'usdt:"odd provider":"a:name"'
    traced = command("trace", "-p", target.pid, "-c", 3, spec, "--print", "text=cstr(arg0), n=arg1")
    assert len(re.findall(r"text='a text'.*n=\d+", traced)) == 3 or len(re.findall(r"a text", traced)) == 3, traced
    traced = command("trace", "-p", target.pid, "-c", 2, "usdt:forms:twelve")
    assert len(re.findall(r"forms:twelve\(arg0=(\d+), .*arg11=\d+\)", traced)) == 2
    target.halt()
    target.finish()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("hist", "usdt:forms:constants", "--of", "arg7"), "forms:constants has no arg7 that can be read"),
        (("hist", "usdt:forms:unknown", "--of", "arg1"), "forms:unknown has no arg1 that can be read"),
        (("hist", "usdt:forms:widths", "--of", "retval"), "retval is not known at a marker"),
        (("time", "usdt:forms:widths"), "a marker is one place"),
    ],
)
def test_what_a_marker_does_not_have_is_said_with_a_caret(target, words, message):
    name, *rest = words
    outcome = subprocess.run(
        [sys.executable, "-m", "anyprobe", name, "-p", str(target.pid), "--for", "0.1", *rest],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert outcome.returncode == 2
    assert message in outcome.stderr
    assert "^" in outcome.stderr


FAULTS = """
#include "protocol.h"
#include "markers.h"
#include <signal.h>
TALLY(place);
int counter;
static void faulted(int number, siginfo_t *info, void *context) { (void)number; (void)info; (void)context; _exit(9); }
static void one_round(void) {
    for (int n = 0; n < 100; n++) {
        CALLED(place);
        __asm__ volatile(MARKER_NOTE("faulty", "place", "0", "-4@%0") "movl counter(%%rip), %%eax\\n" ::"r"(n) : "eax");
        RETURNED(place);
    }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    struct sigaction action = {.sa_sigaction = faulted, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, 0);
    USE_TALLY(place);
}
"""


def test_where_the_program_handles_faults_a_marker_may_be_placed_behind_its_nop():
    """A jump over the nop would displace what follows, which may fault and is not first."""
    numbers = Sum("numbers")
    with started(build("faults_behind_marker.c", text=FAULTS)) as target:
        with anyprobe.attach(target.pid, strategy="jump") as session:
            (listed,) = session.list("usdt:faulty:place")
            assert listed.strategy == "jump"
            session.count("usdt:faulty:place")

            @session.entry("usdt:faulty:place")
            def on_place(n):
                numbers.add(n)

            counts = target.go(20)
            sites = session.snapshot().sites
            assert [site.hits for site in sites] == [counts.calls["place"]] * 2 == [2000] * 2
            assert all("after the marker's nop" in site.notes[0] for site in sites)
            assert numbers.result().total.sum == 20 * 4950
            assert not session.refused
        target.go(1)
        target.finish()
