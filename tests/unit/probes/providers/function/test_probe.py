from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.probe import Probe
from anyprobe.probes.specs.spec import parse


def test_a_probe_is_shown_in_one_line():
    """What it is made of knows the whole module."""
    refused = [("pid:libc.so.6:memcpy:entry", Refusal(Reason.NOT_CODE, 0, "no"))]
    assert repr(Probe(parse("libc:mem*"), refused=refused)) == "<Probe libc:mem*: 0 of 0 places armed, 1 refused>"
