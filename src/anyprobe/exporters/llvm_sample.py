"""Counts of lines as LLVM's profiles in text, for ``clang -fprofile-sample-use``.

Of each function a line ``name:total:head``, where ``head`` is how often it was entered, and below it one for each
source line, ``offset: count``: how far below the declaration. What was inlined counts for the function that it was
written in, in all of its copies.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TextIO

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.data.findings.coverage import Coverage, CoveredModule, Hits, most
from anyprobe.exporters.base import Measurement, Needs


class LlvmSample:
    """Writes the functions that have run, of all files. Lines of which nothing is known are left out."""

    name = "llvm-sample"
    needs = Needs.COVERAGE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the profile."""
        coverage = found.together.coverage or Coverage()
        if not coverage.counted:
            raise UnsupportedTarget("it is not known how often lines have run; anyprobe cover --counts counts that")
        bodies: defaultdict[str, Counter[int]] = defaultdict(Counter)
        heads: Counter[str] = Counter()
        for module in coverage.modules:
            _add(module, bodies, heads)
        totals = {name: sum(lines.values()) for name, lines in bodies.items()}
        for name in sorted(filter(totals.get, totals), key=lambda each: (-totals[each], each)):
            stream.write(f"{name}:{totals[name]}:{heads[name]}\n")
            stream.writelines(f" {line}: {hits}\n" for line, hits in sorted(bodies[name].items()))
        stream.flush()


def _add(module: CoveredModule, bodies: "defaultdict[str, Counter[int]]", heads: Counter[str]) -> None:
    """Add the counts of one file's lines, by functions, and of their entries."""
    from anyprobe.binary.dwarf.scopes import Scope, scopes_of
    from anyprobe.binary.images.image import Image

    if module.without_lines:
        raise UnsupportedTarget(f"no lines of {module.name}: {module.without_lines}")
    image = Image.open(module.path)
    if image.build_id != module.build_id:
        raise UnsupportedTarget(f"{module.path} is not the file any more that has run")
    scopes, blocks = scopes_of(image.debug_info), _Blocks(module)
    declared: dict[str, dict[int, str]] = {}
    for each in scopes:
        declared.setdefault(each.file, {})[each.line] = each.name
    functions = {path: sorted(lines.items()) for path, lines in declared.items()}
    instances: defaultdict[tuple[int, str], dict[int, list[Hits]]] = defaultdict(dict)
    entered: dict[tuple[int, str], int] = {}
    inner: list[Scope] = []  # those that have begun
    number = 0
    for address, path, line in sorted(image.debug_info.statements()):
        while number < len(scopes) and scopes[number].begin <= address:
            inner.append(scopes[number])
            number += 1
        inner = [each for each in inner if each.has(address)]
        own = functions.get(path, ())
        before = bisect_right(own, (line, "\U0010ffff")) - 1
        if before < 0:
            continue
        start, name = own[before]
        # several lines may begin at one address: a row is of the function in whose text it is, if that has code here
        scope = max((each for each in inner if each.name == name), key=lambda each: each.depth, default=None)
        if scope is not None:
            entered[scope.instance, name] = scope.entered
            instances[scope.instance, name].setdefault(line - start, []).append(blocks.hits_at(address))
    for (instance, name), lines in instances.items():
        bodies[name].update({offset: hits for offset, each in lines.items() if (hits := most(each)) is not None})
        heads[name] += blocks.hits_at(entered[instance, name]) or 0


class _Blocks:
    """The hits of a file's blocks by address."""

    def __init__(self, module: CoveredModule) -> None:
        found = sorted(_spans(module))
        self._starts: Sequence[int] = [start for start, _, _ in found]
        self._found = found

    def hits_at(self, address: int) -> Hits:
        """Return how often what is at an address has run."""
        number = bisect_right(self._starts, address) - 1
        if number < 0:
            return None
        _, end, hits = self._found[number]
        return hits if address < end else None


def _spans(module: CoveredModule) -> Iterator[tuple[int, int, Hits]]:
    for function in module.functions:
        first = min(function.blocks, default=0)
        for offset, hits in function.blocks.items():
            end = function.start + offset + function.sizes.get(offset, 0)
            # what is before the first block is endbr64, which runs with it
            yield function.start + (0 if offset == first else offset), end, hits


EXPORTER = LlvmSample()
