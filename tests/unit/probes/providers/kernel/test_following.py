"""Modules that come, and go before their functions are attached to."""

import pytest

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.kernel import following
from anyprobe.probes.providers.kernel.following import FollowedProbe
from anyprobe.probes.providers.kernel.places.sites import KernelSite
from anyprobe.probes.providers.kernel.places.specs import parse
from anyprobe.target.kernel.symbols import KernelFunction

SPEC = "kernel:visitor:*:entry"
SITE = KernelSite(SPEC, "visitor", "arrive", "entry", 0, KernelFunction("arrive", "visitor", 0x1000), ("arrive",))
REFUSED = (SPEC, Refusal(Reason.NOT_TRACEABLE, 0x1000, "it cannot be traced"))


class Part:
    armed = False
    sites = (SITE,)
    refused = ()

    def attach(self, names):
        self.refused = [REFUSED]


class Names:
    def look_again(self):
        pass

    def resolve(self, spec):
        return [SITE]

    def module_of(self, site):
        return site.module


@pytest.mark.parametrize(
    ("afterwards", "told"),
    [({"visitor": 7}, [REFUSED]), ({}, []), ({"visitor": 8}, [])],
    ids=["stays", "goes", "again"],
)
def test_what_is_refused_counts_while_the_module_is_there(monkeypatch, afterwards, told):
    states = iter([{"visitor": 7}, afterwards])
    monkeypatch.setattr(following.loaded_modules, "loaded", lambda: next(states))
    monkeypatch.setattr(following.KernelProbe, "of", lambda *_: Part())
    counters = type("", (), {"chosen": None})()
    probe = FollowedProbe(parse(SPEC), [], counters, armed=True)
    assert probe.look(Names())
    assert probe.refused == told
