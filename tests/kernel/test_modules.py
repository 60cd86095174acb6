"""Modules of the guest's kernel that are loaded and unloaded while probes wait for them."""

import fcntl
import subprocess
import threading

import pytest

import anyprobe
from anyprobe import Count, Sum

MODULE, CONTROL, GET_FREE = "loop", "/dev/loop-control", 0x4C82


@pytest.fixture
def module():
    """Load and unload a module, whose function ``loop_control_ioctl`` runs at each call of ``use``."""

    class Module:
        def load(self):
            subprocess.run(["modprobe", MODULE], check=True)

        def unload(self):
            subprocess.run(["modprobe", "-r", MODULE], check=True)

        def use(self, times):
            with open(CONTROL, "rb", buffering=0) as file:
                for _ in range(times):
                    fcntl.ioctl(file, GET_FREE)

    made = Module()
    made.unload()
    yield made
    made.unload()


@pytest.fixture
def session():
    with anyprobe.kernel() as opened:
        yield opened


def by_name(probe):
    return {site.function: site for site in probe.results()}


def test_module_that_comes_and_goes_and_comes_again(module, session):
    (probe,) = session.count(f"kernel:{MODULE}:loop_control_*:entry", follow=True)
    assert list(probe.results()) == []
    assert not session.reconcile()
    module.load()
    assert session.reconcile() == [probe]
    module.use(5)
    site = by_name(probe)["loop_control_ioctl"]
    assert (site.hits, site.armed, site.strategy) == (5, True, "kprobe")
    module.unload()
    session.pump(0.3)
    site = by_name(probe)["loop_control_ioctl"]
    assert (site.hits, site.armed) == (5, False)
    module.load()
    session.pump(0.3)
    module.use(7)
    site = by_name(probe)["loop_control_ioctl"]
    assert (site.hits, site.armed) == (12, True)
    assert [each.function for each in session.snapshot().sites].count("loop_control_ioctl") == 1


@pytest.mark.parametrize("mechanism", ["kprobe", "splice"])
def test_a_module_that_is_loaded_again_is_counted_again(module, mechanism, request):
    """Without being asked to follow anything: what was probed is there again."""
    if mechanism == "splice":
        request.getfixturevalue("loaded")
    module.load()
    with anyprobe.kernel(mechanism=mechanism) as session:
        both = f"kernel:{MODULE}:loop_control_ioctl:entry", f"kernel:{MODULE}:loop_control_ioctl:return"
        probes = session.count(*both, "kernel::vfs_ioctl")
        assert not session.refused
        module.use(5)
        module.unload()
        session.pump(0.3)
        module.load()
        session.pump(0.3)
        module.use(7)
        for probe in probes[:2]:
            (site,) = probe.results()
            assert (site.hits, site.armed, site.notes) == (12, True, ())
        assert all(site.armed for site in probes[2].results())


@pytest.mark.thorough
def test_functions_of_the_kernel_and_of_a_module_in_the_background(module, session):
    (probe,) = session.count("kernel::l*o*_control_ioctl:entry", "kernel::vfs_ioctl*:entry", follow=True)[:1]
    session.pump_in_background()
    module.load()
    pause = threading.Event()
    for _ in range(600):
        if "loop_control_ioctl" in by_name(probe):
            break
        pause.wait(0.1)
    module.use(3)
    assert by_name(probe)["loop_control_ioctl"].hits == 3
    session.remove(probe)
    module.use(3)
    assert by_name(probe)["loop_control_ioctl"].hits == 3
    session.enable(probe)
    module.use(3)
    site = by_name(probe)["loop_control_ioctl"]
    assert (site.hits, site.armed) == (6, True)


@pytest.mark.thorough
def test_handlers_run_in_a_module_that_is_loaded_later(module, session):
    commands, results, numbers = Count("commands", by=("command",)), Sum("results"), Count("numbers")

    @session.entry(f"kernel:{MODULE}:loop_control_ioctl", follow=True)
    def entered(ctx, cmd):
        commands.add(key=(cmd,))

    @session.ret(f"kernel:{MODULE}:loop_control_ioctl", follow=True)
    def left(ctx):
        results.add(1)

    @session.entry(f"kernel:{MODULE}:loop_control_ioctl", follow=True)
    def mistaken(ctx, no_such_parameter):
        numbers.add()

    for times in (3, 4):
        module.load()
        session.reconcile()
        module.use(times)
        module.unload()
        session.reconcile()
    found = session.snapshot()
    assert {key: cell.count for key, cell in found.aggregation("commands").entries.items()} == {(GET_FREE,): 7}
    assert found.aggregation("results").entries[()].count == 7
    ((spec, why),) = session.refused
    assert spec == f"kernel:{MODULE}:loop_control_ioctl:entry"
    assert "has no parameter no_such_parameter" in why.detail


@pytest.mark.thorough
def test_without_follow_a_module_that_is_not_loaded_is_an_error(module, session):
    with pytest.raises(anyprobe.SpecError):
        session.count(f"kernel:{MODULE}:*:entry")
    with pytest.raises(anyprobe.SpecError):
        session.count("kernel:vmlinux:no_such_function:entry", follow=True)
    assert not session.probes
