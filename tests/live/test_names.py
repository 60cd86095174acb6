"""Names as results show them, taken as specs of a running program; links to programs; what is chosen at load time."""

import io
import os
import pathlib
import subprocess

import pytest
from rich.console import Console

import anyprobe
from anyprobe.reports.table import print_counts

SPELLED = pathlib.Path(__file__).parent / "targets" / "spelled.cpp"
PLAIN = r"""
#include <stdio.h>
__attribute__((noinline)) int work(int x) { __asm__ volatile(""); return x + 1; }
int main(void) { long sum = 0; for (int i = 0; i < 100; i++) sum += work(i); printf("%ld\n", sum); return 0; }
"""


def counted(path, *specs):
    with open(os.devnull, "w", encoding="ascii") as out, anyprobe.run([path], stdout=out) as session:
        session.count(*specs)
        session.resume()
        assert session.wait(180) == 0
        return session.snapshot()


def shown(snapshot):
    output = io.StringIO()
    print_counts(snapshot, Console(file=output, width=200, no_color=True))
    return output.getvalue()


def test_each_function_is_counted_alone_by_the_name_it_was_shown_under(tmp_path):
    path = str(tmp_path / "spelled")
    subprocess.run(["g++", "-std=c++20", "-O1", "-o", path, SPELLED], check=True)
    first = {site.spec: (site.address & 0xFFF, site.hits) for site in counted(path, "a.out:*").sites}
    assert len(first) > 80
    again = counted(path, *first)
    assert {site.spec: (site.address & 0xFFF, site.hits) for site in again.sites} == first


@pytest.mark.parametrize("name", ["my prog", "a:b", "new\nline", "caf\udce9", "50%return", "a+0x10", "hm!"])
def test_programs_of_any_name(tmp_path, name):
    path = str(tmp_path / name)
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", path], input=PLAIN, text=True, check=True)
    (site,) = counted(path, "a.out:work").sites
    (again,) = counted(path, site.spec).sites
    assert (again.spec, again.module, again.hits) == (site.spec, name, 100)
    assert site.spec.split(":work")[0].removeprefix("pid:") in shown(counted(path, site.spec))


def test_a_program_is_called_as_it_was_started(tmp_path):
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", str(tmp_path / "file")], input=PLAIN, text=True, check=True)
    link = tmp_path / "link"
    link.symlink_to("file")
    for module in ("link", "file", "a.out"):
        snapshot = counted(str(link), f"{module}:work")
        assert [(site.spec, site.module) for site in snapshot.sites] == [("pid:link:work:entry", "link")]
        assert shown(snapshot).startswith("link (pid")
    (site,) = counted(str(tmp_path / "file"), "a.out:work").sites
    assert site.module == "file"


def test_what_was_chosen_at_load_time_is_shown_beside_the_name_that_was_asked_for(run_target):
    target = run_target("string_lengths.c")
    with anyprobe.attach(target.pid) as session:
        session.count("libc:strlen")
        target.go(10)
        snapshot = session.snapshot()
    target.finish()
    (site,) = snapshot.sites
    name, _, chosen = site.label.partition(" → ")
    assert name == "strlen"
    assert f"_strlen_{chosen}" in site.function
    text = shown(snapshot)
    assert site.label in text
    assert "IFUNC" not in text
