"""Programs are followed that are visible only to the processes which execute them, as in containers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from anyprobe.probes.following.followed import Followed
from support.results import hits

pytestmark = pytest.mark.live
RUNS, CALLS, PATIENCE = 3, 10, 180
PROGRAM = """
static __attribute__((noinline)) void work(volatile int *number) { (*number)++; __asm__ volatile("nop;nop;nop;nop"); }
int main(void) { volatile int number = 0; for (int n = 0; n < 10; n++) work(&number); return number - 10; }
"""
HIDDEN = "mount -t tmpfs none {0}/inside && cp {0}/worker {0}/inside/hidden"
RUN = "for n in 1 2 3; do {0} || exit 9; done"
OVERLAY = (
    "mount -t tmpfs none {0}/inside && mkdir {0}/inside/up {0}/inside/work {0}/inside/all"
    " && mount -t overlay none -o lowerdir={0}/lower,upperdir={0}/inside/up,workdir={0}/inside/work {0}/inside/all"
)
HERE, THERE, OVER = "{0}/worker", "{0}/inside/hidden", "{0}/inside/all/worker"
MOUNT, USER, PROC = ("--mount",), ("--user", "--map-root-user"), ("--pid", "--fork", "--mount-proc")
ROOT = f"/bin/sh -c '{RUN.format('/bin/hidden')}'"
CASES = {
    "mount": (MOUNT, (HIDDEN, RUN.format(THERE))),
    "relative": (MOUNT, (HIDDEN, "cd {0}/inside", RUN.format("./hidden"))),
    "upwards": (MOUNT, (HIDDEN, "mkdir {0}/inside/d", "cd {0}/inside/d", RUN.format("../hidden"))),
    "link": (MOUNT, (HIDDEN, "mkdir {0}/inside/d", f"ln -s {THERE} {{0}}/inside/d/l", RUN.format("{0}/inside/d/l"))),
    "path": (MOUNT, (HIDDEN, "PATH={0}/inside:$PATH", RUN.format("hidden"))),
    "script": (
        MOUNT,
        (HIDDEN, f"echo '#!{THERE}' > {{0}}/inside/s", "chmod +x {0}/inside/s", RUN.format("{0}/inside/s")),
    ),
    "another here": (MOUNT, (f"mount --bind {HERE} {{0}}/other", RUN.format("{0}/other"))),
    "pid": (("--pid", "--fork"), (RUN.format(HERE),)),
    "pid and mount": (PROC, (HIDDEN, RUN.format(THERE))),
    "user": ((*USER, *MOUNT), (HIDDEN, RUN.format(THERE))),
    "all": ((*USER, *PROC, "--net", "--ipc", "--uts"), (HIDDEN, RUN.format(THERE))),
    "overlay": (MOUNT, (OVERLAY, RUN.format(OVER))),
    "overlay, copied up": (MOUNT, (OVERLAY, f"touch {OVER}", RUN.format(OVER))),
    "chroot": ((), (f"chroot {{0}}/root {ROOT}",)),
    "pivot_root": (MOUNT, ("mount --bind {0}/root {0}/root", "cd {0}/root", "pivot_root . old", f"exec {ROOT}")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a directory with a program, another one that is called ``other``, and what serves as a root directory."""
    folder = tmp_path_factory.mktemp("spaces")
    source = folder / "worker.c"
    source.write_text(PROGRAM)
    subprocess.run(["cc", "-O2", "-o", folder / "worker", source], check=True)
    for name in ("inside", "lower", "root/bin", "root/old"):
        (folder / name).mkdir(parents=True)
    shutil.copy(folder / "worker", folder / "lower")
    shutil.copy("/bin/true", folder / "other")
    for needed in ("/bin/sh", folder / "worker"):
        name = "hidden" if needed == folder / "worker" else "sh"
        shutil.copy(needed, folder / "root/bin" / name)
        for word in subprocess.run(["ldd", needed], check=True, capture_output=True, text=True).stdout.split():
            if word.startswith("/"):
                (folder / "root" / Path(word[1:]).parent).mkdir(parents=True, exist_ok=True)
                shutil.copy(word, folder / "root" / word[1:])
    return folder


@pytest.mark.root
@pytest.mark.parametrize("case", list(CASES))
def test_what_only_the_process_sees_is_followed(folder, case):
    options, steps = CASES[case]
    command = ["unshare", *options, "sh", "-c", " && ".join(steps).format(folder)]
    plain = subprocess.run(command, capture_output=True, text=True)
    if plain.returncode:
        pytest.skip(f"not permitted here: {plain.stderr.strip()}")
    with Followed.run(command) as tree:
        tree.sessions[0].host.modules.permit_absent()
        tree.count("*:work")
        tree.resume()
        status = tree.wait(PATIENCE)
        assert status is not None
        assert os.waitstatus_to_exitcode(status) == 0
        found = [hits(each, "work") for each in tree.snapshots() if hits(each, "work")]
        assert found == [CALLS] * RUNS, tree.notes()
        assert not [each for each in tree.notes() if "set-uid" not in each and ", 0 missed" not in each]
