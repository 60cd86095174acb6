"""What somebody else sees of probes while they come and go."""

from contextlib import suppress

from anyprobe.core.errors import TargetError
from anyprobe.probes.providers.function.outside import listing


def is_probed(pid: int, function: str) -> bool:
    """Return whether a function of a process is probed now: its site is written down before it is armed.

    What is listed and not written yet is shown as disabled; while something is written, nobody else can look.
    """
    with suppress(TargetError):
        found = [site for site in listing.inspect(pid).sites if site.symbol == function]
        return bool(found) and not {"GONE", "DISABLED"} & set(found[-1].flags)
    return False
