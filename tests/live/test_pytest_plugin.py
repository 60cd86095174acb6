"""``pytest --anyprobe``: the calls of each test are those that it makes, and nothing is there without the option."""

import json
import os
import re
import subprocess
import sys
import textwrap
from xml.etree import ElementTree as ET

import pytest

pytestmark = pytest.mark.live

TESTS = """
    import zlib
    import pytest

    @pytest.fixture
    def packed():
        return zlib.compress(b"fixture")  # not the test's own

    @pytest.mark.parametrize("times", [3, 7])
    def test_compresses(times, packed):
        for _ in range(times):
            zlib.compress(b"x" * 100)

    def test_fails():
        zlib.crc32(zlib.compress(b"y"))
        assert False

    def test_calls_nothing():
        pass
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs pytest on these tests in a process of its own."""
    (tmp_path / "test_them.py").write_text(textwrap.dedent(TESTS))

    def pytest_on(*arguments):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "test_them.py",
            "--junitxml=found.xml",
            *arguments,
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    return pytest_on


def properties(tmp_path):
    """Return the calls of each test by function, as the report has them."""
    found = {}
    for case in ET.parse(tmp_path / "found.xml").iter("testcase"):  # noqa: S314 - what pytest has written here
        for each in case.iter("property"):
            calls = json.loads(each.get("value"))
            found[case.get("name")] = {function.partition(":")[2]: count for function, count, *_ in calls}
    return found


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_calls_are_those_of_each_test(run, tmp_path, workers):
    done = run("--anyprobe", "libz:deflateEnd", "--anyprobe", "libz:crc32", *workers)
    assert done.returncode == 1, done.stdout + done.stderr
    assert properties(tmp_path) == {
        "test_compresses[3]": {"deflateEnd": 3},
        "test_compresses[7]": {"deflateEnd": 7},
        "test_fails": {"deflateEnd": 1, "crc32": 1},
        "test_calls_nothing": {},
    }
    assert "native calls: libz:deflateEnd libz:crc32" in done.stdout
    assert re.search(r"test_compresses\[7\]\n +calls +total +mean +function\n +7 .*deflateEnd", done.stdout)
    assert "0 more tests with calls, 1 test without" in done.stdout
    assert "3 passed" in done.stdout


def test_without_the_option_nothing_is_there(run, tmp_path):
    done = run()
    assert "native calls" not in done.stdout
    assert properties(tmp_path) == {}


def test_a_spec_that_cannot_be_read_ends_the_run_in_a_line(run):
    done = run("--anyprobe", "a:b:c:d:e:f")
    assert done.returncode == 4
    assert "ERROR: --anyprobe:" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
