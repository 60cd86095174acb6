"""Public names: listed, importable, and in exactly one namespace."""

import importlib
import importlib.util
import pkgutil

import anyprobe

# Daily use, for tool builders, for tests; whatever else there is, is internal.
PUBLIC = ("anyprobe", "anyprobe.lowlevel", "anyprobe.testing", "anyprobe.usdt")
NAMESPACES = [importlib.import_module(name) for name in PUBLIC if importlib.util.find_spec(name) is not None]


def test_each_listed_name_exists():
    for namespace in NAMESPACES:
        for name in getattr(namespace, "__all__", ()):
            assert hasattr(namespace, name), f"{namespace.__name__}.{name}"


def test_each_name_is_in_exactly_one_namespace():
    homes: dict[str, list[str]] = {}
    for namespace in NAMESPACES:
        for name in getattr(namespace, "__all__", ()):
            homes.setdefault(name, []).append(namespace.__name__)
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    assert not twice


def test_exports_are_listed_once():
    for module in pkgutil.walk_packages(anyprobe.__path__, "anyprobe."):
        if module.name.endswith("__main__"):
            continue
        names = getattr(importlib.import_module(module.name), "__all__", ())
        assert len(names) == len(set(names)), module.name
        assert list(names) == sorted(names), f"{module.name}.__all__ is not sorted"


def test_public_things_have_a_docstring():
    for namespace in NAMESPACES:
        for name in getattr(namespace, "__all__", ()):
            thing = getattr(namespace, name)
            if callable(thing):
                assert thing.__doc__, f"{namespace.__name__}.{name}"
