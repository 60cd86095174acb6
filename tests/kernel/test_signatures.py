"""A kernel that takes signed modules only (``module.sig_enforce=1``): what keeps the driver out is said in a line."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anyprobe.core import kept
from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel.driver import building, loading

ENFORCED = Path("/sys/module/module/parameters/sig_enforce")
pytestmark = pytest.mark.skipif(
    not ENFORCED.exists() or ENFORCED.read_text().strip() != "Y", reason="this kernel takes unsigned modules, too"
)


@pytest.fixture
def release():
    """Return the running kernel, for which the driver is built."""
    running = building.running_release()
    if not Path(building.module_file(running, f"{kept.directory()}/driver")).exists():
        pytest.skip("the driver is not built for this kernel: that takes minutes in here")
    return running


def test_a_driver_without_a_signature(release):
    done = subprocess.run(
        [sys.executable, "-m", "anyprobe", "driver", "load"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "this kernel takes signed modules only: sign what anyprobe driver build prints" in line
    assert not loading.is_loaded()


def test_a_key_that_is_not_enrolled(release, tmp_path):
    places = Path("/usr/src"), *Path(kept.directory(), "guests").glob("*/root/usr/src")  # here, or where guests have it
    tools = [place / f"linux-headers-{release}/scripts/sign-file" for place in places]
    tool = next(filter(Path.exists, tools), None)
    if tool is None or not shutil.which("openssl"):
        pytest.skip("openssl or the kernel's headers are not here")
    key, certificate, module = tmp_path / "MOK.priv", tmp_path / "MOK.der", tmp_path / "anyprobe.ko"
    subprocess.run(
        ["openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=anyprobe/",
         "-outform", "DER", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    shutil.copy(building.module_file(release, f"{kept.directory()}/driver"), module)
    subprocess.run([tool, "sha256", key, certificate, module], check=True)
    signed = subprocess.run(["modinfo", "-F", "signer", module], capture_output=True, text=True, check=True).stdout
    assert signed.strip() == "anyprobe"
    with pytest.raises(KernelRefused, match="does not know the key that it is signed with"):
        loading.load(str(module))
    assert not loading.is_loaded()
