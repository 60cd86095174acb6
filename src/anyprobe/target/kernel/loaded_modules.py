"""The kernel's modules: which are loaded, and whether one is the same as before."""

import os

_LISTING, _FOLDER = "/proc/modules", "/sys/module"
_STATE = 4
"""The field that says whether a module is loaded; the ones before: name, size, users and their number."""


def loaded() -> dict[str, int]:
    """Return the modules that are loaded, each with a number that no other loading of it has."""
    try:
        with open(_LISTING) as file:
            lines = file.read().splitlines()
    except FileNotFoundError:  # a kernel without modules
        return {}
    found = {}
    for fields in map(str.split, lines):
        if fields[_STATE] != "Live":
            continue
        try:
            found[fields[0]] = os.stat(f"{_FOLDER}/{fields[0]}").st_ino
        except FileNotFoundError:  # it has gone meanwhile
            continue
    return found


def text_of(module: str) -> int | None:
    """Return where the code of a module begins, None where it has gone."""
    try:
        with open(f"{_FOLDER}/{module}/sections/.text") as file:
            return int(file.read(), 16)
    except FileNotFoundError:
        return None
