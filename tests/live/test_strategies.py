"""docs/strategies.md, held against what happens: strategies, bytes before and after, exact counts."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

import anyprobe
from anyprobe.core.refusal import Reason
from anyprobe.splice.plan.splices import Strategy
from support.driver import build, started
from support.image import Image

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"
LINE = re.compile(r"^  (before|after) +(\w+)([+-]0x[0-9a-f]+) +((?:\[?[0-9a-f]{2}\]? )+)")
PATCH_LINE = re.compile(r"^  0x[0-9a-f]+  ((?:[0-9a-f]{2} )+) +(\w.*)")
ALL_WAYS = {"Where control comes from": "retarget"}
"""Headings that are no strategy's name, with what is shown for the sites of their examples."""
PER_CALL = {"by_short+2": 3, "by_eviction+0xc0": 3}
"""Where the site is hit more than once per call."""


class Place(NamedTuple):
    """Some bytes of a function; ``None`` for those that depend on where things lie."""

    function: str
    offset: int
    content: tuple[int | None, ...]

    def agrees(self, found: bytes) -> bool:
        return all(want is None or want == here for want, here in zip(self.content, found, strict=True))


def content_of(text):
    found, free = [], False
    for word in text.split():
        free = free or word.startswith("[")
        found.append(None if free else int(word, 16))
        free = free and not word.endswith("]")
    return tuple(found)


def examples():
    """Return the heading, the spec and the places of each example on the page."""
    found = []
    heading = ""
    block = None
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = line[3:].split(":")[0]
            heading = ALL_WAYS.get(heading, heading)
        elif line.startswith("```"):
            block = [] if block is None else None
        elif block is not None and (place := LINE.match(line)):
            when, function, offset, text = place.groups()
            found[-1][2][when].append(Place(function, int(offset, 16), content_of(text)))
        elif block is not None and line.startswith("by_"):
            found.append((heading, line, {"before": [], "after": []}))
    return found


EXAMPLES = examples()


@pytest.fixture
def target():
    # without randomization: where the heap lies decides which addresses puns may lead to
    with started("setarch", "--addr-no-randomize", str(build("strategies.c", "-no-pie"))) as running:
        running.go(1)
        yield running


@pytest.mark.parametrize(
    ("strategy", "spec", "places"), EXAMPLES, ids=lambda each: each if isinstance(each, str) else ""
)
def test_the_bytes_are_those_of_the_page(target, strategy, spec, places):
    function = re.match(r"\w+", spec)[0]
    before, calls = Image.of(target.pid), target.counts.calls[function]
    with (
        anyprobe.attach(target.pid, strategy="trap" if strategy == "trap" else "auto") as session,
        Path(f"/proc/{target.pid}/mem").open("rb", buffering=0) as memory,
    ):
        starts = {
            name: session.resolve(f"a.out:{name}")[0][0].address for name in {p.function for p in places["before"]}
        }

        def look(when):
            for place in places[when]:
                memory.seek(starts[place.function] + place.offset)
                found = memory.read(len(place.content))
                assert place.agrees(found), f"{when} {place.function}{place.offset:+#x}: {found.hex(' ')}"

        look("before")
        session.count(f"a.out:{spec}")
        assert not session.refused
        look("after")
        made = target.go(8).calls[function] - calls
        sites = session.snapshot().sites
        assert strategy in {site.strategy for site in sites}
        if ":insn" not in spec:
            assert [site.hits for site in sites] == [made * PER_CALL.get(spec, 1)]
    before.assert_restored(target.pid)
    target.go(1)
    target.finish()


def test_the_patch_is_that_of_the_page(target):
    """But for addresses, and the bytes that hold them."""
    page = [match.groups() for line in PAGE.read_text().splitlines() if (match := PATCH_LINE.match(line))]
    with anyprobe.attach(target.pid) as session:
        patch = session.explain("a.out:by_several").patch
    assert len(page) == 8
    for (digits, text), (_, code, made) in zip(page, patch, strict=False):
        places = [re.sub("0x[0-9a-f]{6,}", "somewhere", each) for each in (text, made)]
        assert places[0] == places[1]
        shown = bytes.fromhex(digits)
        assert len(code) == len(shown)
        assert code == shown or "somewhere" in places[0] or text.startswith(("jmp ", "call "))
    target.go(1)
    target.finish()


@pytest.mark.parametrize("strategy", ["punned", "short"])
@pytest.mark.sliced(2)
def test_springboards_in_what_others_displace(strategy):
    """With one strategy only, thousands of jumps lead through bytes of each other's instructions."""
    work = "import json\nfor line in open(0): print(json.loads(json.dumps(line * 50)).upper()[:20], flush=True)"
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as python:
        assert python.stdin is not None
        assert python.stdout is not None

        def works():
            for number in range(200):
                print(f"line {number:015}", file=python.stdin, flush=True)
                assert python.stdout.readline() == f"LINE {number:015}\n"

        works()
        with anyprobe.attach(python.pid, strategy=strategy) as session:
            session.count("libc:*%return")
            assert not [why for _, why in session.refused if why.reason is Reason.FOREIGN_BYTES]
            works()
            assert sum(site.hits > 0 for site in session.snapshot().sites) > 20
        works()
        python.stdin.close()
        assert python.wait(180) == 0


def test_every_strategy_is_on_the_page():
    assert {strategy for strategy, _, _ in EXAMPLES} == {strategy.value for strategy in Strategy}
    assert sum(len(places["after"]) for _, _, places in EXAMPLES) >= 21
