"""Functions that the compiler has put into others: listed, and probed at all their instances on request."""

import errno
import json
import subprocess
import sys

import pytest

from anyprobe.kprobes import Kprobe, debugfs, register_kprobe, unregister_kprobe
from anyprobe.probes.providers.function.outside import listing

pytestmark = pytest.mark.live


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "anyprobe", *arguments], capture_output=True, text=True, timeout=180, check=False
    )


def test_the_command_lists_the_instances(target):
    shown = command("list", "--inlined", "a.out:folded", "-p", str(target.pid), "--json")
    assert shown.returncode == 0, shown.stderr
    sites = json.loads(shown.stdout)["sites"]
    assert [site["function"] for site in sites] == ["folds", "folds", "folds_too"]
    assert all(site["strategy"] for site in sites)
    both = command("list", "--inlined", "a.out:stepped", "-p", str(target.pid), "--json")
    assert [site["function"] for site in json.loads(both.stdout)["sites"]] == ["stepped"]
    assert "no function 'no_such'" in command("list", "--inlined", "no_such", "-p", str(target.pid)).stderr
    assert command("list", "--inlined", "-p", str(target.pid)).returncode == 2
    target.finish()


def test_all_are_probed_on_request_and_have_a_line_each(target, session):
    listed = json.loads(command("list", "--inlined", "folded", "-p", str(target.pid), "--json").stdout)["sites"]
    assert register_kprobe(Kprobe(symbol_name="folded")) == -errno.ENOENT
    kp = Kprobe(symbol_name="folded", inlined=True)
    assert register_kprobe(kp) == 0
    places = {site["address"] for site in listed}
    assert {line.address for line in debugfs.listing()} == places
    assert {line.address for line in listing.inspect(target.pid).registered} == places
    target.go(2)
    assert kp.hits == 6
    unregister_kprobe(kp)
    assert listing.inspect(target.pid).registered == []
    target.finish()
