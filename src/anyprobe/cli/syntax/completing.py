"""Completion in shells: specs, pids, names of processes. Quick: no process is touched, no function is analysed.

``eval "$(_ANYPROBE_COMPLETE=bash_source anyprobe)"`` switches it on; ``zsh_source`` and ``fish_source`` as well.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

MOST = 300
"""So many names are offered at most: more would not be read."""
KINDS = ("entry", "return", "insn", "block", "run", "call", "store", "taken", "undecided")
_MAPPED = re.compile(r"^\S+ r-x\S+ \S+ \S+ \S+ +(/.*?)(?: \(deleted\))?$", re.MULTILINE)
_PROVIDER = re.compile(r"pid\d*")
_SHORT = re.compile(r"(.+?)(?:-\d[\d.]*)?\.so(?:[.\d]*)")


class Bash(BashComplete):
    """Bash takes a colon for the end of a word, so that a spec comes in pieces."""

    name = "bash"
    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", 'COMPREPLY+=("$value"); [[ $value == *: ]] && compopt -o nospace'
    )
    _before = ""
    """What stands before the piece that bash completes."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Put the pieces of specs together again."""
        given = split_arg_string(os.environ["COMP_WORDS"])
        at = int(os.environ["COMP_CWORD"])
        words: list[str] = []
        for word in [*given[:at], *(given[at : at + 1] or [""])]:
            if words and (word == ":" or words[-1].endswith(":")) and len(words) > 2:
                words[-1] += word
                self._before = words[-1].rpartition(":")[0] + ":"
            else:
                words.append(word)
                self._before = ""
        return words[1:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Return the piece that bash completes."""
        return f"{item.type},{str(item.value).removeprefix(self._before)}"


def register() -> None:
    """Have bash use what knows of colons."""
    add_completion_class(Bash, "bash")


def specs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Return how a spec may go on: modules, then functions, then what is probed of them."""
    head, colon, text = incomplete.rpartition(":")
    files = _files(context)
    if not colon or _PROVIDER.fullmatch(head):
        return [f"{head}{colon}{each}:" for each in _modules(files) if each.startswith(text)]
    parts = head.split(":")
    given = parts[1:] if _PROVIDER.fullmatch(parts[0]) else parts
    if len(given) > 1:
        return [f"{head}:{kind}" for kind in KINDS if kind.startswith(text)]
    function, percent, kind = text.partition("%")
    if percent:
        return [f"{head}:{function}%{each}" for each in KINDS if each.startswith(kind)]
    return [f"{head}:{name}" for name in _functions(given[0], function, files)[:MOST]]


def pids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Return processes by number, with their names."""
    return [CompletionItem(pid, help=name) for pid, name in _processes() if pid.startswith(incomplete)]


def names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Return the names of processes."""
    return sorted({name for _, name in _processes() if name.startswith(incomplete)})


def _processes() -> Iterator[tuple[str, str]]:
    """Yield the number and the name of each process that has a program."""
    for pid in sorted((each for each in os.listdir("/proc") if each.isdigit()), key=int):
        with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as command:
            if command.read(1) and int(pid) != os.getpid():  # threads of the kernel have none
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
                    yield pid, name.read().rstrip("\n")


def _files(context: click.Context) -> dict[str, str]:
    """Return the files that the target has mapped as code, by the names that specs have for them.

    Where no process is named, what Python itself has mapped stands for it: libc is there, and the like.
    """
    chosen = [str(pid) for pid in context.params.get("pids") or ()]
    wanted = set(context.params.get("names") or ())
    chosen += [pid for pid, name in _processes() if name in wanted] if wanted else []
    files: dict[str, str] = {}
    for pid in chosen or ["self"]:
        with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
            executable = os.readlink(f"/proc/{pid}/exe") if chosen else ""
            for path in dict.fromkeys(_MAPPED.findall(maps.read())):
                name = "a.out" if path == executable else os.path.basename(path)
                short = _SHORT.fullmatch(name)
                files.setdefault(short[1] if short else name, f"/proc/{pid}/root{path}")
    return files


def _modules(files: dict[str, str]) -> list[str]:
    return sorted({*files, "a.out"})


def _functions(module: str, begin: str, files: dict[str, str]) -> list[str]:
    """Return the symbols of functions in a module that begin so."""
    short = _SHORT.fullmatch(module)
    path = files.get(module) or (files.get(short[1]) if short else None)
    if path is None:
        return []
    from anyprobe.binary.objects.elf import ElfFile
    from anyprobe.binary.objects.symbols import dynamic_symbols, static_symbols
    from anyprobe.core.errors import AnyprobeError

    try:
        elf = ElfFile.open(path)
    except (AnyprobeError, OSError):
        return []
    found: set[str] = set()
    for table in (static_symbols(elf), dynamic_symbols(elf)):
        if table is not None:
            code = table.symbols[((table.symbols["info"] & 15) % 8 == 2) & (table.symbols["shndx"] != 0)]
            found |= {text.partition("@")[0] for text in table.texts(code["name"].tolist()) if text.startswith(begin)}
    return sorted(found)
