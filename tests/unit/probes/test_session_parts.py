"""A session is a table: what it does is done by its parts, which nothing but their own methods changes."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import anyprobe
from anyprobe.probes import parts, session
from anyprobe.probes.composed import ComposedHost
from anyprobe.probes.session import Session

PACKAGE = Path(anyprobe.__file__).parent


def test_a_session_has_no_bases_and_is_short():
    assert Session.__mro__ == (Session, object)
    assert len(inspect.getsource(session).splitlines()) <= 300
    assert len([name for name in dir(Session) if not name.startswith("__")]) <= 70


def test_texts_become_specs_at_the_edge():
    """Below it specs are values: what is left reads names of functions that the program has told."""
    parse = re.compile(r"(?:^|[^.a-z_])parse\((?!text: str)", re.MULTILINE)
    found = {
        str(path.relative_to(PACKAGE))
        for package in ("cli", "kprobes", "probes")
        for path in (PACKAGE / package).rglob("*.py")
        if parse.search(path.read_text())
    }
    assert found == {
        "probes/providers/kernel/places/specs.py",
        "probes/specs/naming.py",
        "probes/specs/spec.py",
        "probes/waiting/offcpu.py",
    }


def test_nothing_is_assigned_to_a_session_from_outside():
    made = object.__new__(Session)
    for name in ("warnings", "snapshot", "anything_else"):
        with pytest.raises(AttributeError):
            setattr(made, name, None)


def test_all_parts_are_made_in_one_place():
    """All are made in one place, where it is seen what each needs."""
    made = inspect.getsource(ComposedHost.__init__)
    for path in Path(parts.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                assert f"{node.name}(" in made


def test_parts_assign_to_no_attribute_of_one_another():
    wrong = [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for path in Path(parts.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value).startswith("self._")
        and ast.unparse(node.value) != "self._host"
    ]
    assert wrong == []


def test_what_has_been_made_is_not_looked_for_in_dictionaries():
    """``Lazy`` tells it, by a name that a reader and mypy can follow."""
    wrong = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and any(isinstance(each, ast.In | ast.NotIn) for each in node.ops)
        and any(ast.unparse(each).endswith("__dict__") for each in node.comparators)
    ]
    assert wrong == []
