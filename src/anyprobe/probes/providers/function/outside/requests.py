"""What is asked of a living session from outside, through the target: answered at the session's next look."""

import time
from typing import TYPE_CHECKING

from anyprobe.core.memory import MemoryFault
from anyprobe.journal.installed import find_owners, owner_alive
from anyprobe.journal.records import Request, answer, ask, requests
from anyprobe.target.process.process import Process

if TYPE_CHECKING:
    from anyprobe.data.findings.leftover import OptimizationReport
    from anyprobe.probes.providers.function.host import ProbeHost

PATIENCE, PAUSE = 3.0, 0.02
"""Seconds: commands look twice in one."""


def ask_for_optimization(pid: int, *, on: bool) -> "OptimizationReport":
    """Ask the sessions in a process to have their probes reached by jumps or by traps, and wait for them to do so."""
    from anyprobe.data.findings.leftover import OptimizationReport

    request = Request.OPTIMIZE if on else Request.UNOPTIMIZE
    process = Process.open(pid)
    try:
        owners = find_owners(process.mem, process.mappings())
        living = [address for address, owner in owners.items() if not owner.ended and owner_alive(owner)]
        for address in living:
            ask(process.mem, address, request)
        end = time.monotonic() + PATIENCE
        waiting = list(living)
        while waiting and time.monotonic() < end:
            time.sleep(PAUSE)
            waiting = [address for address in waiting if requests(process.mem, address)[1] != request]
    except MemoryFault:
        waiting = []  # the session has ended meanwhile
    finally:
        process.close()
    sessions = len({owners[address].session for address in living})
    return OptimizationReport(pid, on, sessions, done=bool(living) and not waiting)


def look(session: "ProbeHost") -> None:
    """Do what was asked of a session since the last look."""
    memory, journals = session.process.mem, [arena.journal.address for arena in session.splicing.holdings.arenas]
    found = {address: requests(memory, address) for address in journals}
    new = [asked for asked, done in found.values() if asked != done]
    if not new:
        return
    from anyprobe.probes.providers.function.wanted.replanning import switch_optimization

    staying = switch_optimization(session, session.probes, on=new[0] == Request.OPTIMIZE)
    session.warn(*staying)
    for address in journals:
        answer(memory, address, new[0])
