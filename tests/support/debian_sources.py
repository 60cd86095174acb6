"""Sources of Debian's packages, as they were released: what has to be built otherwise, and programs' own tests."""

import os
import subprocess
from pathlib import Path

import pytest

MINUTES = 60.0
LISTS = Path("/etc/apt/sources.list.d/debian.sources")


def run(*words: str, **options) -> None:
    """Run a command that prepares something; where it fails the test that needs it is skipped."""
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30 * MINUTES, **options
    )
    if done.returncode:
        pytest.skip(f"{' '.join(words)[:60]}: {done.stderr.strip()[-200:]}")


def original_of(package: str, folder: Path) -> Path:
    """Download a package's sources, once, and return the archive of the program's authors."""
    source, pattern = folder / "archives", f"{package}_*.orig.tar.*"
    if any(source.glob(pattern)):
        return min(source.glob(pattern))
    if not LISTS.exists():
        pytest.skip("needs Debian's list of sources")
    for each in ("lists/partial", "cache/archives/partial", "archives"):
        os.makedirs(folder / each, exist_ok=True)
    lists = LISTS.read_text()
    (folder / "own.sources").write_text(lists.replace("Types: deb\n", "Types: deb-src\n"))
    apt = [
        f"-oDir::Etc::sourcelist={folder}/own.sources", "-oDir::Etc::sourceparts=/dev/null",
        f"-oDir::State::lists={folder}/lists", f"-oDir::Cache={folder}/cache", "-oAPT::Sandbox::User=",
    ]  # fmt: skip
    run("apt-get", "update", *apt)
    suite = lists.split("Suites:")[1].split()[0]  # of security updates there may be no sources
    run("apt-get", "source", "--download-only", f"{package}/{suite}", *apt, cwd=source)
    return min(source.glob(pattern))
