"""A provider of its own: probes that count the periods of a timer. It needs nothing but the providers' interface."""

import time
from dataclasses import dataclass

from anyprobe.core.errors import SpecError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.snapshots.snapshot import SiteResult
from anyprobe.probes.providers.base import Resolution

SHORTEST_MS = 1


@dataclass(eq=False)
class Timer:
    """One timer, which counts while it is armed."""

    spec: str
    milliseconds: int
    armed: bool = False
    since: float = 0.0
    counted: int = 0


class TimerProvider:
    """Counts periods: ``timer:10ms`` and ``timer:10ms,20ms``."""

    name = "timer"

    def __init__(self, now=time.monotonic):
        """Count by a clock."""
        self._now = now

    def claims(self, spec):
        return spec.text.startswith("timer:")

    def resolve(self, spec):
        timers, refused = [], []
        for part in spec.text.removeprefix("timer:").split(","):
            number = part.removesuffix("ms")
            if not number.isdigit() or number == part:
                raise SpecError(spec.text, spec.text.index(part), "a timer needs milliseconds, as timer:10ms")
            canonical = f"timer:{part}"
            if int(number) < SHORTEST_MS:
                refused.append((canonical, Refusal(Reason.TOO_SHORT, 0, "no timer is that short")))
            else:
                timers.append(Timer(canonical, int(number)))
        return Resolution(timers, refused)

    def attach(self, attachments):
        for timer in attachments:
            if not timer.armed:
                timer.armed, timer.since = True, self._now()
        return []

    def detach(self, attachments):
        for timer in attachments:
            if timer.armed:
                timer.counted, timer.armed = self._hits(timer), False
        return []

    def read(self, attachments):
        return [
            SiteResult(each.spec, "", each.spec, 0, 0, "timer", each.armed, self._hits(each)) for each in attachments
        ]

    def _hits(self, timer):
        return timer.counted + (round((self._now() - timer.since) * 1000) // timer.milliseconds if timer.armed else 0)


def PROVIDER(process):  # noqa: N802 - what the registry asks a module for
    """Return the provider for a session on a process."""
    return TimerProvider()
