"""Providers: one that knows nothing of spliced code is as good as the one of functions."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from anyprobe.core.errors import SpecError, TargetError, UsageError
from anyprobe.probes.providers import provided
from anyprobe.probes.providers.base import Provider
from anyprobe.probes.providers.function.provider import FunctionProvider
from anyprobe.probes.providers.provided import Providers
from anyprobe.probes.providers.usdt.provider import UsdtProvider
from anyprobe.probes.specs.spec import parse, parsed
from support.timer_provider import TimerProvider

TESTS = Path(__file__).parents[3]


class Clock:
    """A time that goes on as a test says."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def providers(clock):
    providers = Providers()
    providers.add(TimerProvider(clock))
    return providers


def probe_of(providers, text):
    spec = parse(text)
    return providers.resolved(providers.claiming(spec), spec)


def hits(probe):
    return {each.spec: each.hits for each in provided.read([probe])}


@pytest.mark.parametrize("kind", [FunctionProvider, UsdtProvider, TimerProvider])
@pytest.mark.parametrize("name", ["claims", "resolve", "attach", "detach", "read"])
def test_providers_take_what_the_interface_says(kind, name):
    assert [*inspect.signature(getattr(kind, name)).parameters] == [
        *inspect.signature(getattr(Provider, name)).parameters
    ]
    assert kind.name


def test_a_provider_needs_no_code_that_splices():
    program = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r}); import support.timer_provider as made;"
        "from anyprobe.probes.specs.spec import parse;"
        "found = made.TimerProvider().resolve(parse('timer:10ms')).attachments; made.TimerProvider().attach(found);"
        "print(*[each for each in sys.modules if each.startswith('anyprobe.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    packages = {each.split(".")[1] for each in done.stdout.split()}
    assert packages == {"core", "data", "probes"}


def test_what_is_attached_counts_until_it_is_detached_and_again_afterwards(providers, clock):
    probe = probe_of(providers, "timer:10ms,20ms")
    assert not probe.armed
    assert repr(probe) == "<Probe timer:10ms,20ms: 0 of 2 attached, 0 refused>"
    provided.attach([probe])
    clock.now = 0.105
    assert probe.armed
    assert hits(probe) == {"timer:10ms": 10, "timer:20ms": 5}
    provided.detach([probe])
    clock.now = 1.0
    assert hits(probe) == {"timer:10ms": 10, "timer:20ms": 5}
    provided.attach([probe])
    clock.now = 1.055
    assert hits(probe) == {"timer:10ms": 15, "timer:20ms": 7}


def test_specs_of_functions_are_claimed_by_no_other(providers):
    assert providers.claiming(parse("libc:malloc")) is None
    assert Providers().claiming(parse("timer:10ms")) is None


def test_what_is_refused_and_what_means_nothing(providers):
    probe = probe_of(providers, "timer:0ms,5ms")
    assert [(spec, why.detail) for spec, why in probe.refused] == [("timer:0ms", "no timer is that short")]
    assert len(probe.attachments) == 1
    with pytest.raises(SpecError, match="milliseconds"):
        probe_of(providers, "timer:often")


def test_handlers_and_times_are_for_functions(providers):
    with pytest.raises(UsageError, match="timer provider"):
        providers.refuse_handlers(parsed(["libc:malloc", "timer:10ms"]), "handlers are for")
    providers.refuse_handlers(parsed(["libc:malloc"]), "handlers are for")


def test_all_are_attached_or_none(providers):
    class Fails(TimerProvider):
        def claims(self, spec):
            return spec.text.startswith("timer:7")

        def attach(self, attachments):
            raise TargetError("it cannot be had")

    providers.add(Fails())
    probes = [probe_of(providers, "timer:10ms"), probe_of(providers, "timer:7ms")]
    with pytest.raises(TargetError):
        provided.attach(probes)
    assert not any(each.armed for each in probes)
