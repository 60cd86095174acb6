"""Tests that run in a guest: by ``make test-kernel`` all of them there; in any other run a guest runs a slice of them.

Outside of a guest, the first test boots one for all of the run, whichever process runs it. Each test then shows what it
did in there.
"""

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import anyprobe
from anyprobe.core import kept
from anyprobe.target.kernel import switches
from anyprobe.target.kernel.driver import building, loading
from anyprobe.target.kernel.driver.device import Driver
from support import driver as targets
from support import guest_driver, place_planner, spliced_handlers
from support.kernel_patches import Patches, warnings

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
GUEST = os.environ.get("ANYPROBE_GUEST")
RESULTS = "ANYPROBE_KERNEL_RESULTS"
UNAVAILABLE = 125
SECONDS = 1500
"""In which a guest runs its slice; six minutes on a machine that does little else."""
EMULATED_SECONDS = 900
"""A test's time in a guest, which is as slow as the machine is busy."""
_PROGRAMS = "system_calls", "probed_everywhere", "reads_sizes"
_said: dict[Path, "GuestRun"] = {}


def build_programs():
    """Compile what the tests run, where host and guest both find it; return the programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets.tempfile, "tempdir", "/tmp")
        return {name: targets.build(f"{name}.c", "-pthread") for name in _PROGRAMS}


@pytest.fixture(scope="session")
def system_calls():
    """Return the program that makes system calls: NUMBER COUNT THREADS."""
    return build_programs()["system_calls"]


@pytest.fixture(scope="session")
def probed_everywhere():
    """Return the program that calls a function and passes a marker COUNT times."""
    return str(build_programs()["probed_everywhere"])


@pytest.fixture(scope="session")
def reads_sizes():
    """Return the program that reads known sizes COUNT times."""
    return str(build_programs()["reads_sizes"])


@pytest.fixture(scope="session")
def unloading():
    """Unload the driver at the very end: each time a module comes or goes, the kernel is analysed anew."""
    yield
    if not switches.number_at("/proc/sys/kernel/modules_disabled"):  # else it stays until the guest ends
        loading.unload()
        assert not loading.is_loaded()


@pytest.fixture(scope="module")
def loaded(unloading):
    """Have the driver loaded for the tests of a file."""
    release = building.running_release()
    folder = f"{kept.directory()}/driver"
    if not Path(building.module_file(release, folder)).exists() and not Path(f"/lib/modules/{release}/build").exists():
        pytest.skip(f"no headers of Linux {release}")
    loading.load(building.build(release, folder))


@pytest.fixture
def driver(loaded):
    """Open the device; no write is in force before or after."""
    before = warnings()
    with Driver() as opened:
        assert opened.live == 0
        yield opened
    with Driver() as again:
        assert again.live == 0
    assert warnings() == before


@pytest.fixture
def patches(driver):
    return Patches(driver)


@pytest.fixture
def splicing(loaded):
    """Open a session whose probes are splices; no write is in force before or after, and nothing is in the log."""
    before = warnings()
    with anyprobe.kernel(mechanism="splice") as opened:
        yield opened
    with Driver() as driver:
        assert driver.live == 0
    assert warnings() == before


@pytest.fixture
def folder(tmp_path):
    """Return a folder of an ext4 file system, of another kind where there is none."""
    image, place = tmp_path / "image", tmp_path / "ext4"
    place.mkdir()
    mounted = False
    if shutil.which("mkfs.ext4"):
        subprocess.run(["truncate", "-s", "64M", image], check=True)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        mounted = not subprocess.run(["mount", "-o", "loop", image, place], check=False, capture_output=True).returncode
    yield place
    if mounted:
        subprocess.run(["umount", place], check=True)
        subprocess.run(["fsck.ext4", "-nf", image], check=True, capture_output=True)


@dataclass
class GuestRun:
    """What happened in the guest: a report by test, or why there was none."""

    status: int
    output: str
    reports: dict[str, list[dict]]


def pytest_collection_modifyitems(config, items):
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        item.add_marker("kernel")
        if GUEST is None:
            item.add_marker(pytest.mark.timeout(2 * SECONDS))
        elif item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(EMULATED_SECONDS))
    if GUEST is None or config.getoption("--slice"):
        thorough = [item for item in ours if item.get_closest_marker("thorough")]
        items[:] = [item for item in items if item not in thorough]
        config.hook.pytest_deselected(items=thorough)


def pytest_collection_finish(session):
    """Have the places planned that a test in a guest is going to need, while others run."""
    wanted = [item for item in session.items if item.path.name == "test_random_splices.py"]
    if GUEST is not None and wanted and place_planner.VARIABLE in os.environ:
        with place_planner.asking() as planner:
            planner.begin(wanted[0].module.SAMPLE)


def pytest_runtest_logreport(report):
    if GUEST is not None and RESULTS in os.environ:
        shown = {name: getattr(report, name) for name in ("nodeid", "when", "outcome", "duration")}
        skipped = report.outcome == "skipped" and isinstance(report.longrepr, tuple)
        shown["text"] = report.longrepr[2] if skipped else report.longreprtext
        with Path(os.environ[RESULTS]).open("a") as file:
            file.write(json.dumps(shown) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    # asked of all tests of the run, also of those in other folders
    if GUEST is not None or not item.path.is_relative_to(HERE):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports(item):
    done = _run_in_guest(item.config)
    told = done.reports.get(item.nodeid, [])
    if done.status == UNAVAILABLE:
        told = [{"when": "setup", "outcome": "skipped", "duration": 0.0, "text": done.output.strip().splitlines()[-1]}]
    elif not told:
        text = f"no result from the guest, which ended with {done.status}:\n{done.output[-4000:]}"
        told = [{"when": "call", "outcome": "failed", "duration": 0.0, "text": text}]
    for each in told:
        longrepr = None if each["outcome"] == "passed" else each["text"]
        if each["outcome"] == "skipped":
            longrepr = (str(item.path), item.location[1] or 0, each["text"])
        yield pytest.TestReport(
            item.nodeid, item.location, dict.fromkeys(item.keywords, 1), each["outcome"], longrepr, each["when"],
            duration=each["duration"],
        )  # fmt: skip


def _run_in_guest(config):
    """Return what happened in the guest of this run; the first process that asks boots it, the others wait."""
    base = config._tmp_path_factory.getbasetemp()
    place = (base.parent if hasattr(config, "workerinput") else base) / "kernel"
    if place not in _said:
        place.mkdir(exist_ok=True)
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (place / "status").exists():
                _boot(place)
        lines = (place / "results").read_text().splitlines() if (place / "results").exists() else []
        reports = {}
        for each in map(json.loads, lines):
            reports.setdefault(each["nodeid"], []).append(each)
        _said[place] = GuestRun(int((place / "status").read_text()), (place / "output").read_text(), reports)
    return _said[place]


def _boot(place):
    build_programs()  # faster than in there
    guest_driver.build("6.12")
    spliced_handlers.compile_all()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "pytest_timeout",
        "-p",
        "no:cacheprovider",
        "--slice",
        "--rootdir",
        str(ROOT),
        str(HERE),
    ]
    environment = {**os.environ, RESULTS: str(place / "results")}
    for name in list(environment):
        if name.startswith("PYTEST_"):  # of this run, not of the one in there
            del environment[name]
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take long to import in there
    done = subprocess.run(
        [sys.executable, place_planner.__file__, ROOT / "tools/guest", "-t", str(SECONDS), shlex.join(command)],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    (place / "output").write_text(done.stdout + done.stderr)
    (place / "status").write_text(str(done.returncode))
