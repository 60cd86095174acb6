"""A program that is given to its loader as an argument is ``a.out``, whatever the loader is called."""

import os
import shutil
import subprocess

import pytest

from anyprobe.probes.following.followed import Followed
from support.results import hits

pytestmark = pytest.mark.live
CALLS, PATIENCE = 10, 180
GLIBC, MUSL = "/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"
PROGRAM = """
static __attribute__((noinline)) void work(volatile int *number) { (*number)++; __asm__ volatile("nop;nop;nop;nop"); }
int main(void) { volatile int number = 0; for (int n = 0; n < 10; n++) work(&number); return number - 10; }
"""
WAYS = {
    "alone": (GLIBC, "{loader} {program}"),
    "options": (GLIBC, "{loader} --library-path /nowhere {program}"),
    "a link": (GLIBC, "ln -sf {loader} {folder}/link && {folder}/link {program}"),
    "a copy": (GLIBC, "cp -L {loader} {folder}/copy && {folder}/copy {program}"),
    "musl": (MUSL, "{loader} {program}"),
    "a copy of musl's": (MUSL, "cp -L {loader} {folder}/libc.so && {folder}/libc.so {program}"),
}


@pytest.fixture(params=list(WAYS))
def way(request, tmp_path):
    """Return the loader and a command line of a shell that runs a program by it, and then by itself."""
    loader, line = WAYS[request.param]
    compiler = "musl-gcc" if loader == MUSL else "cc"
    if shutil.which(compiler) is None or not os.path.exists(loader):
        pytest.skip(f"there is no {compiler}")
    (tmp_path / "program.c").write_text(PROGRAM)
    program = tmp_path / "program"
    subprocess.run([compiler, "-O2", "-o", program, tmp_path / "program.c"], check=True)
    return line.format(loader=loader, program=program, folder=tmp_path), program


def counted(command):
    with Followed.run(command) as tree:
        tree.sessions[0].host.modules.permit_absent()
        tree.count("a.out:work")
        tree.resume()
        assert os.waitstatus_to_exitcode(tree.wait(PATIENCE)) == 0
        assert not tree.notes()
        return [found for each in tree.snapshots() if (found := hits(each, "work"))]


def test_in_what_is_followed(way):
    line, program = way
    assert counted(["sh", "-c", f"{line} && {program}"]) == [CALLS, CALLS]


def test_all_of_a_program_is_none_of_its_loader():
    """Before there is a program nothing is ``a.out``."""
    with Followed.run([GLIBC, "/bin/true"]) as tree:
        tree.sessions[0].host.modules.permit_absent()
        tree.count("a.out:*")
        tree.resume()
        assert os.waitstatus_to_exitcode(tree.wait(PATIENCE)) == 0
        assert {site.module for site in tree.snapshot().all_sites} == {"true"}
