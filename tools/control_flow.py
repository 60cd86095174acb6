"""Print how much of the control flow of some files is known, why not all of it, and what finding out costs.

    .venv/bin/python tools/control_flow.py [--list] FILE...

A function counts as known if everything that may enter its middle is known (``FunctionCode.complete``). Every function
of the file is decoded and its indirect jumps are followed, in one process, without the tables of earlier sessions.
"""

import argparse
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.core.refusal import Refusal


@dataclass(frozen=True)
class ControlFlow:
    """Functions, and those of them whose control flow is not known, with the reason."""

    functions: Sequence[FunctionCode]
    refused: Sequence[tuple[FunctionCode, Refusal]]

    @classmethod
    def of(cls, functions: Sequence[FunctionCode]) -> "ControlFlow":
        """Follow the indirect jumps of all of them."""
        return cls(functions, [(function, why) for function in functions if (why := function.complete) is not None])

    @property
    def share(self) -> float:
        """The share of functions whose control flow is known, in per cent."""
        return 100 * (1 - len(self.refused) / max(len(self.functions), 1))

    def reasons(self) -> Counter[str]:
        """Return how often each reason occurs, addresses left out."""
        return Counter(_without_addresses(why.detail) for _, why in self.refused)


class Survey:
    """One file, its functions, and what finding out took."""

    def __init__(self, path: str) -> None:
        """Analyse the whole file."""
        began = time.process_time()
        image = Image.open(path)
        text = image.text()
        code_map = CodeMap(text, image.cold_parts)
        found = [code_map.function_at(start) for start in text.function_starts.tolist()]
        self.flow = ControlFlow.of([function for function in found if isinstance(function, FunctionCode)])
        self.seconds = time.process_time() - began
        self.image = image
        self.megabytes = sum(len(area) for area in text.ranges) / 1e6

    def name_of(self, function: FunctionCode) -> str:
        """Return a function's name, or its address."""
        known = self.image.functions.at(function.start)
        return known.name if known is not None else f"{function.start:#x}"


def _without_addresses(detail: str) -> str:
    return re.sub(r",? ?(at|to) 0x[0-9a-f]+", "", detail)


def _line(refused: tuple[FunctionCode, Refusal], survey: Survey) -> str:
    function, why = refused
    return f"    {why.address:#x} {why.detail} ({survey.name_of(function)})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Survey the files and print the table."""
    parser = argparse.ArgumentParser(description="Print how much of the control flow of some files is known.")
    parser.add_argument("--list", action="store_true", help="name the functions whose control flow is not known")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args(arguments)
    print("| file | text, MB | functions | control flow known | CPU seconds | seconds per MB |")
    print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as empty:
        os.environ["XDG_CACHE_HOME"] = empty
        surveys = []
        for file in options.files:
            one = Survey(file)
            surveys.append(one)
            figures = f"{one.megabytes:.1f} | {len(one.flow.functions):,} | {one.flow.share:.2f} %"
            cost = f"{one.seconds:.1f} | {one.seconds / one.megabytes:.2f}"
            print(f"| {Path(file).name} | {figures} | {cost} |", flush=True)
    for file, one in zip(options.files, surveys, strict=True):
        print(f"\n{Path(file).name}: {len(one.flow.refused):,} not known")
        for reason, count in one.flow.reasons().most_common():
            print(f"  {count:6,}  {reason}")
        if options.list:
            print("\n".join(_line(each, one) for each in one.flow.refused))


if __name__ == "__main__":
    main()
