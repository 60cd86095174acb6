"""USDT markers of running programs: found, listed and counted, whatever forms their notes have."""

import pytest

import anyprobe
from anyprobe import SpecError
from support.driver import build, started

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
        ("usdt:libc.so.6:libc:setjmp", "no USDT markers in libc.so.6", ""),
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
