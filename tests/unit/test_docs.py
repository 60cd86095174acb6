"""What the documents say about the sources, checked against the sources."""

import ast
import re
from pathlib import Path

import pytest

import anyprobe

SOURCES = Path(anyprobe.__file__).parent
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = sorted(path.parent for path in SOURCES.rglob("__init__.py") if path.parent != SOURCES)
PATH = re.compile(r"`([\w./*<>-]+\.(?:py|md|json|lock))`")
DOTTED = re.compile(r"`((?:binary|cli|core|data|handlers|isa|kprobes|probes|reports|splice|target)\.[\w.]+)`")
LINK = re.compile(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)")
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]


def name_of(package):
    return package.relative_to(SOURCES).as_posix()


def docstring(package):
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert text, f"{name_of(package)} has no docstring"
    return text


def test_the_map_lists_every_package_with_its_purpose():
    wanted = [f"| `{name_of(package)}` | {docstring(package).splitlines()[0]} |" for package in PACKAGES]
    lines = (DOCS / "contributing.md").read_text().splitlines()
    start = lines.index("| package | what it is for |") + 2
    found = lines[start : start + len(wanted)]
    assert found == wanted, "docs/contributing.md should hold:\n" + "\n".join(wanted)


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_every_package_says_what_goes_in_and_out_and_what_it_must_not_do(package):
    purpose, blank, *rest = docstring(package).splitlines()
    assert purpose.endswith(".")
    assert not blank
    text = " ".join(rest)
    assert re.match(r"In: .+ Out: .+ Must not .+\.", text), text


def exists(path):
    """Return whether a path is one below a root, or, without a folder, the name of some file."""
    if "<" in path:
        return True
    places = (ROOT, SOURCES, SOURCES.parent, ROOT / "tests")
    if any(next(place.glob(path), None) for place in places if not path.startswith(("/", "."))):
        return True
    return "/" not in path and any(next((ROOT / each).rglob(path), None) for each in ("src", "tests", "tools", "docs"))


def is_module(dotted):
    """Return whether a dotted name begins with a module, or is a package."""
    place = SOURCES
    for part in dotted.split("."):
        if (place / f"{part}.py").exists():
            return True
        place /= part
    return place.is_dir()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_and_modules_that_documents_mention_exist(document):
    text = document.read_text()
    missing = [path for path in PATH.findall(text) if not exists(path)]
    missing += [dotted for dotted in DOTTED.findall(text) if not is_module(dotted)]
    missing += [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    assert not missing


API = (DOCS / "api.md").read_text()
EXAMPLES = dict(re.findall(r"^### ([^\n]+)\n[^#]*?```python\n(.*?)^```$", API, re.MULTILINE | re.DOTALL))
DIRECTIVES = set(re.findall(r"^\.\. auto\w+:: anyprobe\.(\w+)", API, re.MULTILINE))


def test_every_public_name_is_in_the_reference():
    homes = {name: getattr(getattr(anyprobe, name), "__module__", "") for name in anyprobe.__all__}
    errors = {name for name, home in homes.items() if home.endswith("errors")}
    types = set(re.findall(r"\b(?:[iuf]\d+|ptr|func|stack)\b", API))
    assert set(anyprobe.__all__) <= DIRECTIVES | errors | types


def test_twenty_names_have_an_example():
    assert len(EXAMPLES) >= 20


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_use_what_there_is(name):
    for node in ast.walk(ast.parse(EXAMPLES[name])):
        if isinstance(node, ast.ImportFrom):
            assert {alias.name for alias in node.names} <= set(anyprobe.__all__)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "session":
            assert hasattr(anyprobe.Session, node.attr) or node.attr == "count", node.attr


def words_of_names():
    """Return the words in the names of modules, classes and functions, without the plural's s."""
    names = {path.stem for path in SOURCES.rglob("*.py")} | {name_of(package) for package in PACKAGES}
    for path in SOURCES.rglob("*.py"):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        names |= {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}
    words = {word.lower() for name in names for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
    words |= {word for reason in anyprobe.Reason for word in reason.value.split("-")}
    return words | {word.removesuffix("s") for word in words}


def test_every_word_of_the_glossary_is_in_a_name():
    rows = re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)[1:]
    assert rows == sorted(rows, key=str.lower)
    known = words_of_names()
    used = {word.lower() for row in rows for word in re.findall(r"\w+", row)}
    # what runs all of it, a state that no name tells of, and a number of results
    known |= {"controller", "quiescent", "unmatched"}
    assert not {word for word in used if word not in known and word.removesuffix("s") not in known}


def test_the_first_page_leads_to_every_document():
    """Else Sphinx calls it an error, which only `make docs` would find."""
    listed = re.findall(r"^[a-z-]+$", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in DOCS.glob("*.md") if path.stem != "index")
