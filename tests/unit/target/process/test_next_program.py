"""What is about to be executed is called by its file's own name, however it was named."""

import os
import shutil

import pytest

from anyprobe.target.process.next_program import next_program


@pytest.fixture
def rights(tmp_path):
    """A set-uid program with a link to its folder and a link to itself."""
    (tmp_path / "real").mkdir()
    program = tmp_path / "real" / "program"
    shutil.copy("/bin/true", program)
    program.chmod(0o4755)
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "other").symlink_to("real/program")
    return program


def test_all_names_of_a_program_are_one_in_messages(rights, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [rights, "real/program", "./folder/program", "other", tmp_path / "folder" / ".." / "other"]
    directory = os.open(rights.parent, os.O_PATH)
    try:
        found = [next_program(os.getpid(), os.fsencode(each)) for each in names]
        found.append(next_program(os.getpid(), b"program", directory))
    finally:
        os.close(directory)
    assert {each.path for each in found} == {str(rights)}
    assert all("set-uid" in each.refusal for each in found)


def test_an_open_file_is_called_by_its_own_name(rights):
    descriptor = os.open(rights, os.O_RDONLY)
    try:
        assert next_program(os.getpid(), b"", descriptor, 0x1000).path == str(rights)
    finally:
        os.close(descriptor)
