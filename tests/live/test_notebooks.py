"""The magics of IPython, called as its shell calls them: what a cell calls is counted."""

import zlib

import pytest

import anyprobe

pytestmark = pytest.mark.live


class Shell:
    """What the magics know of IPython's shell."""

    def __init__(self):
        self.magics, self.names = {}, {"zlib": zlib}

    def register_magic_function(self, function, magic_kind="line", magic_name=None):
        self.magics[magic_kind, magic_name] = function

    def run_cell(self, cell):
        exec(cell, self.names)  # noqa: S102 - that is what a cell is for


@pytest.fixture
def shell():
    found = Shell()
    anyprobe.load_ipython_extension(found)
    return found


def calls(snapshot):
    return {each.function: each.count for each in snapshot.functions}


def test_a_cell_is_probed(shell):
    found = shell.magics["cell", "probe"]("libz:deflateEnd libz:crc32", "for _ in range(5): zlib.compress(b'x')")
    assert calls(found) == {"deflateEnd": 5}
    assert "deflateEnd" in found._repr_html_()
    found = shell.magics["cell", "probe"]("--count libz:deflateEnd", "zlib.compress(b'x')")
    assert found.hits == 1


def test_a_session_is_kept_from_cell_to_cell(shell, capsys):
    magic = shell.magics["line", "anyprobe"]
    assert magic("libz:deflateEnd") is None
    zlib.compress(b"x")
    assert calls(magic("")) == {"deflateEnd": 1}
    zlib.compress(b"x")
    shell.magics["cell", "probe"]("libz:deflateEnd", "")
    assert "%anyprobe off ends it" in capsys.readouterr().err
    assert calls(magic("off")) == {"deflateEnd": 2}
    magic("")
    assert capsys.readouterr().err == "anyprobe: nothing is probed: %anyprobe SPEC... begins\n"


def test_what_names_nothing_is_said(shell, capsys):
    shell.magics["cell", "probe"]("", "")
    assert capsys.readouterr().err.startswith("anyprobe: %%probe [--count] SPEC...: name functions")


def test_sessions_are_a_line_and_a_page(run_target):
    target = run_target("nested_calls.c", options=("-pthread",))
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:fib")
        assert repr(session) == f"<Session on nested_calls (pid {target.pid}): 1 probe, 1 armed>"
        assert "fib" in session._repr_html_()
    assert "1 probe, detached" in repr(session)
    with anyprobe.attach_self() as session:
        assert "pid" in repr(session)
        assert "Snapshot of" in session._repr_html_()
