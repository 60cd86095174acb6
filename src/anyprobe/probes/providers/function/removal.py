"""Taking probes out: some of them for a while, everything at a session's end, what dead controllers left."""

from collections.abc import Sequence
from contextlib import suppress

from anyprobe.core.errors import TargetError, TargetExited
from anyprobe.core.memory import MemoryFault
from anyprobe.journal.installed import find_owners, owner_alive
from anyprobe.journal.memfds import is_ours
from anyprobe.probes.providers.function.probe import Place, Probe, edits_for
from anyprobe.splice.apply.blocked_syscalls import Sleepers
from anyprobe.splice.apply.recovery.recovery import remove, remove_everywhere
from anyprobe.splice.apply.uprobes import ADVICE, IN_USE, has_uprobes
from anyprobe.splice.processes import ProcessSplicing
from anyprobe.target.base import RunningProcess


def disarm(splicing: ProcessSplicing, places: Sequence[Place]) -> list[str]:
    """Take places of probes out; return what had to stay in, and why."""
    splicing.upkeep.look_for_returned()
    places = [place for place in places if place.hook.armed]
    edits = edits_for(places, remove=True)
    splicing.engine.change(edits)
    staying = [place for place in places if place.hook.armed]
    why = {id(edit.state): edit.refusal for edit in edits} if staying else {}
    return [f"{place.site.canonical} stays armed: {why[id(place.state.root)]}" for place in staying]


def rearm(splicing: ProcessSplicing, probes: Sequence[Probe]) -> None:
    """Put probes in again; those that cannot be have a refusal then, those that could not be tried keep theirs."""
    places = [place for probe in probes for place in probe.all_places if not place.hook.armed]
    before = [(place.hook, place.hook.refusal) for place in places]
    for hook, _ in before:
        hook.refusal = None
    try:
        splicing.engine.change(edits_for(places))
    except BaseException:
        for hook, refusal in before:
            if not hook.armed:
                hook.refusal = refusal
        raise


def detach(process: RunningProcess, splicing: ProcessSplicing) -> list[str]:
    """Remove a session from its target, and from all other processes that have its splices; return what remains.

    The others are cleaned whatever stands in the way in the target; that is raised afterwards.
    """
    sessions, remaining = frozenset([splicing.holdings.owner.session]), []
    failure: TargetError | None = None
    since = 0

    def patches() -> Sleepers:
        return Sleepers(splicing.engine.patches())

    try:
        _forget_lost(process, splicing)
        try:
            splicing.end_live()
        finally:  # whatever went wrong there: the splices do not stay
            removal = remove(process, sessions, patches, splicing.upkeep.saved_copies, splicing.let_go)
        splicing.access.pause_us["disarm"] += removal.pause_us
        # A process that is older than this controller can only have our splices if it shares the target's memory. From
        # there they have just been removed, unless the target runs another program by now.
        since = splicing.holdings.owner.start_time if removal.splices else 0
        remaining += [f"the bytes at {at:#x} were changed by another program and left alone" for at in removal.foreign]
        remaining += [f"{kept} is not quiet yet; run: anyprobe detach -p {process.pid}" for kept in removal.kept]
    except TargetExited:
        pass
    except TargetError as error:
        failure = error
    inodes = frozenset[int]() if splicing.holdings.is_nowhere else splicing.holdings.inodes()
    since = max(since, splicing.holdings.fresh_since)
    _, failed = remove_everywhere(inodes, sessions, patches, but=process.pid, since=since)
    remaining += [f"{each}; run: anyprobe detach -p {process.pid}" for each in failed]
    if failure is not None:
        raise failure
    return remaining


def _forget_lost(process: RunningProcess, splicing: ProcessSplicing) -> None:
    """Have the journals list no more what was in modules that are gone: other files may be mapped there by now."""
    if splicing.holdings.inodes():
        with suppress(TargetError, MemoryFault), process.exclusive():  # where nothing is left, nothing is restored
            splicing.upkeep.forget_lost(process.mappings())


def clean_up(process: RunningProcess) -> list[str]:
    """Remove what dead controllers left, and return what is to be said of that and of uprobes.

    A live controller is met with an error when something is to be armed.
    """
    mappings = process.mappings()
    found = find_owners(process.mem, mappings).values()
    dead = frozenset(owner.session for owner in found if not owner_alive(owner))
    unfinished = not found and any(is_ours(mapping) for mapping in mappings)
    told = [f"{IN_USE}: {ADVICE}"] if has_uprobes(mappings) else []
    if not dead and not unfinished:
        return told
    owners = ", ".join(str(owner.pid) for owner in found if owner.session in dead) or "unknown"
    removal = remove(process, dead)
    return [f"removed {removal.splices} splices that a dead anyprobe session (process {owners}) had left", *told]


def forget_places(splicing: ProcessSplicing, probes: Sequence[Probe]) -> None:
    """Let all that is known of single places go, of a session that is closed and of which only results are wanted.

    A place and its splice hold each other: else they wait for the collector, which walks all that there is.
    """
    for probe in probes:
        for place in probe.all_places:
            place.hook.splice = None
        probe.places, probe.timed, probe.handled = [], [], []
    splicing.upkeep.forget_splices()
