"""Sessions on other processes and on the program itself have one interface."""

import inspect

import pytest

from anyprobe.probes.api import AnySessionApi, CallApi, ProbeApi, SessionApi
from anyprobe.probes.providers.function.handlers.handling import Call
from anyprobe.probes.providers.function.probe import Probe
from anyprobe.probes.providers.kernel.calls import KernelCall
from anyprobe.probes.providers.kernel.probe import KernelProbe
from anyprobe.probes.providers.kernel.session import KernelSession
from anyprobe.probes.selfattach.session import SelfCall, SelfProbe, SelfSession
from anyprobe.probes.session import Session


def members(protocol):
    """Return the names that a protocol has beyond what every protocol has."""
    return sorted(name for name in vars(protocol) if not name.startswith("_") or name in {"__enter__", "__exit__"})


def own(kind, name):
    """Return what a class itself implements, not what it takes over from the protocol."""
    protocols = {AnySessionApi, SessionApi}
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each) and each not in protocols), None)


IN_PROGRAMS = {**vars(AnySessionApi), **vars(SessionApi)}
EVERYWHERE = members(AnySessionApi)
NOT_IN_THE_KERNEL = sorted(set(members(SessionApi)) - set(EVERYWHERE))


@pytest.mark.parametrize(
    ("kind", "protocol", "name"),
    [
        *((kind, IN_PROGRAMS, name) for kind in (Session, SelfSession) for name in [*EVERYWHERE, *NOT_IN_THE_KERNEL]),
        *((KernelSession, vars(AnySessionApi), name) for name in EVERYWHERE),
    ],
)
def test_sessions_take_what_the_protocol_says(kind, protocol, name):
    wanted, found = protocol[name], own(kind, name)
    assert found is not None, f"{kind.__name__} has no {name}"
    if isinstance(wanted, property):
        assert isinstance(found, property | int)
        return
    parameters = inspect.signature(found).parameters
    for each in inspect.signature(wanted).parameters.values():
        assert each.name in parameters
        assert parameters[each.name].kind is each.kind
        assert each.default in {each.empty, ...} or parameters[each.name].default == each.default
    extra = [each for each in parameters.values() if each.name not in inspect.signature(wanted).parameters]
    assert all(each.default is not each.empty for each in extra)


def test_a_session_on_the_kernel_lacks_what_changes_or_limits_programs():
    assert NOT_IN_THE_KERNEL == ["after", "limit_overhead", "replace"]
    assert not set(NOT_IN_THE_KERNEL) & set(dir(KernelSession))


def test_a_session_on_the_program_itself_has_nothing_that_the_protocol_lacks():
    public = {name for name in vars(SelfSession) if not name.startswith("_")}
    refused = {"callback"}
    assert public - {*EVERYWHERE, *NOT_IN_THE_KERNEL} == {"ask", "attendant", "place_return", "warnings", *refused}


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [
        *((kind, ProbeApi) for kind in (Probe, SelfProbe, KernelProbe)),
        *((kind, CallApi) for kind in (Call, SelfCall, KernelCall)),
    ],
)
def test_probes_and_calls_have_what_the_protocols_say(kind, protocol):
    declared = {*dir(kind), *getattr(kind, "__annotations__", {}), *kind.__init__.__code__.co_names}
    assert set(members(protocol)) | set(protocol.__annotations__) <= declared
