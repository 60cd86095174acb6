"""Engines that take faults of the code they make for events: WebAssembly in V8, the JVM."""

import pytest

from support.filter_programs import java, node
from support.filters import print_shares
from support.results import hits

TRAPS = 344
"""How often the WebAssembly in ``NODE`` reads behind its memory of 64 KiB."""
HANDLER = "a.out:*trap_handler::TryHandleSignal*"
MODES = pytest.mark.parametrize("live", [False, True], ids=["stopped", "live"])


@pytest.mark.sliced(3)
@MODES
@pytest.mark.parametrize("kind", ["return", "block", "insn"])
def test_webassembly_out_of_bounds(kind, live):
    """V8's handler looks up the pc, which lies in code that V8 has made, and changes it; all of this with probes."""
    program = node()
    specs = (HANDLER, f"a.out:*trap_handler*%{kind}", f"libc:mem*%{kind}", f"libc:*alloc*%{kind}")
    output, snapshot = program.probed(lambda session: session.count(*specs), live=live)
    print_shares(program.name, snapshot)
    assert output == program.plain()
    assert {site.hits for site in snapshot.sites if site.kind == "entry"} == {TRAPS}
    assert snapshot.nmissed == 0


@pytest.mark.sliced(2)
@MODES
def test_java_exceptions_that_are_signals(live):
    """Null pointers, divisions by zero, full stacks, safepoints: every instruction of the JVM's handler is counted."""
    program = java()
    specs = ("libjvm:JVM_handle_linux_signal%insn", "libjvm:JVM_*", "libjvm:JVM_*%return", "libc:*")
    output, snapshot = program.probed(lambda session: session.count(*specs), live=live)
    print_shares(program.name, snapshot)
    assert output == program.plain()
    assert hits(snapshot, "JVM_handle_linux_signal") > 10
    assert snapshot.nmissed == 0
