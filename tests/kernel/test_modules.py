"""Modules of the guest's kernel that are loaded and unloaded while probes wait for them."""

import fcntl
import subprocess
import threading

import pytest

import anyprobe

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


def test_without_follow_a_module_that_is_not_loaded_is_an_error(module, session):
    with pytest.raises(anyprobe.SpecError):
        session.count(f"kernel:{MODULE}:*:entry")
    with pytest.raises(anyprobe.SpecError):
        session.count("kernel:vmlinux:no_such_function:entry", follow=True)
    assert not session.probes
