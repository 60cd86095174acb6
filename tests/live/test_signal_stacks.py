"""Signal handlers on stacks that they do not write, or that end right below: what comes before them does not either."""

import subprocess

import pytest

import anyprobe
from support.driver import build, wait_until, waits_for_input

pytestmark = [pytest.mark.live, pytest.mark.root]
SIGNALS, TIMED = 5000, 200
HANDLERS = {"readonly": "returns", "tiny": "returns", "switches": "switches"}


@pytest.mark.parametrize(
    "specs",
    [("a.out:work",), ("a.out:*", "libc:sig*"), ("a.out:*:*",)],
    ids=["elsewhere", "everywhere", "instructions"],
)
@pytest.mark.parametrize(("how", "handler"), HANDLERS.items(), ids=HANDLERS)
def test_the_program_goes_on(how, handler, specs):
    argv = [build("signal_stacks.c", "-pthread"), how]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: waits_for_input(process.pid), "its handlers are set")
        with anyprobe.attach(process.pid) as session:
            session.count(*specs)
            assert (process.communicate("\n", timeout=180)[0], process.wait()) == ("fine\n", 0)
            snapshot = session.snapshot()
    hits = {site.function: site.hits for site in snapshot.sites if site.spec.endswith(":entry")}
    assert hits["work"] >= SIGNALS
    if handler in hits and how != "readonly":  # there the kernel delivers what it can
        assert hits[handler] >= SIGNALS + TIMED
    assert not any("sees pcs" in warning for warning in snapshot.warnings)
