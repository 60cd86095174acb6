"""``anyprobe driver``: built, loaded, shown, kept while it is in use, and unloaded, from the shell."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from anyprobe.core import kept
from anyprobe.target.kernel.driver import building, loading
from anyprobe.target.kernel.driver.device import Driver

pytestmark = pytest.mark.thorough


@pytest.fixture
def unloaded():
    """Have no driver loaded before and afterwards."""
    release = building.running_release()
    if not Path(building.module_file(release, f"{kept.directory()}/driver")).exists():
        pytest.skip("the driver is not built for this kernel: that takes minutes in here")
    loading.unload()
    yield release
    loading.unload()


def driver(*arguments, status=0):
    """Return what the command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "anyprobe", "driver", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_the_driver_from_the_shell(unloaded):
    before = json.loads(driver("status", "--json"))
    assert before["release"] == unloaded
    assert before["loaded"] is False
    assert before["built"] == driver("build").strip()
    assert "is loaded: /dev/anyprobe" in driver("load")
    assert "is loaded: /dev/anyprobe" in driver("load"), "a second time nothing happens"
    status = json.loads(driver("status", "--json"))
    assert (status["loaded"], status["obstacle"], status["writes"]) == (True, None, 0)
    with Driver():
        assert "it is in use: an anyprobe session" in driver("unload", status=1)
    assert "not loaded" in driver("unload")
    assert "not loaded" in driver("unload")
    assert not Path("/dev/anyprobe").exists()
