"""With the capabilities that the unit and the manifests name, and no others, processes of other users are probed."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from support.driver import build

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root runs as several users"),
    pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv"),
]
PROGRAM = """
#include <unistd.h>
__attribute__((noinline)) long step(long n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
int main(void) { write(1, "r", 1); for (;;) { step(1); usleep(200); } }
"""


@pytest.mark.parametrize(
    ("capabilities", "status", "told"),
    [
        ("sys_ptrace,+dac_override", 0, ""),
        ("sys_ptrace", 1, "give anyprobe CAP_DAC_OVERRIDE, too"),
        ("net_raw", 1, "runs as uid 33, we are uid 0"),
    ],
)
def test_the_two_capabilities_are_enough(capabilities, status, told):
    other = ["setpriv", "--reuid=33", "--regid=33", "--clear-groups", build("others.c", "-O1", text=PROGRAM)]
    with subprocess.Popen(other, stdout=subprocess.PIPE) as target:
        try:
            assert target.stdout.read(1) == b"r"
            own = [sys.executable, "-m", "anyprobe", "count", "a.out:step", "-p", str(target.pid), "--for", "0.2"]
            command = ["setpriv", f"--bounding-set=-all,+{capabilities}", *own, "--json"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == status, done.stderr
            assert told in done.stderr
            if not status:
                assert json.loads(done.stdout)["sites"][0]["hits"] > 0
        finally:
            target.kill()
