"""Which share of entries, exits and instructions jumps can reach: planned over whole files, and armed in a process."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from measure import BUILD
from rows import Report

if TYPE_CHECKING:
    from coverage import Survey, Tally

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
ALONE = 2_000
"""Instructions of each file that are planned by themselves where rows are not wanted in full; else all of them."""
MOST = 40_000
"""Those that are planned together then: functions side by side, from several places; else whole files."""
ARMED = 10_500
"""Instructions of an interpreter and its libraries that are armed and run; fewer where one comes up twice."""
RUST = """
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Write};
fn main() {
    let words: Vec<String> = (0..2000).map(|n| format!("w{}", n % 37)).collect();
    let mut counts = HashMap::<String, usize>::new();
    for word in &words { *counts.entry(word.clone()).or_default() += 1; }
    let sorted: BTreeMap<_, _> = counts.into_iter().collect();
    let threads: Vec<_> = (0..4).map(|n| std::thread::spawn(move || n * 2)).collect();
    let sum: i32 = threads.into_iter().map(|each| each.join().unwrap()).sum();
    writeln!(std::io::stdout(), "{:?} {} {:.3}", sorted.iter().next(), sum, words.len() as f64 / 3.0).unwrap();
    for line in std::io::stdin().lock().lines() {
        println!("{}", line.unwrap().parse::<f64>().map(|x| x.sqrt().to_string()).unwrap_or_else(|e| e.to_string()));
    }
}
"""
GO = """
package main
import ("encoding/json"; "fmt"; "os"; "sort"; "strings")
func main() {
	counts, words := map[string]int{}, []string{}
	for _, word := range strings.Fields(strings.Repeat("a b c d ", 1000)) { counts[word]++ }
	for word := range counts { words = append(words, word) }
	sort.Strings(words)
	json.NewEncoder(os.Stdout).Encode(counts)
	fmt.Println(words)
}
"""


def _built(name: str, source: str, command: list[str]) -> Path | None:
    """Return a program made of ``source``, or nothing where the compiler is missing."""
    if shutil.which(command[0]) is None:
        return None
    path, program = BUILD / name, BUILD / Path(name).stem
    path.write_text(source)
    subprocess.run([*command, "-o", program, path], check=True, capture_output=True, cwd=BUILD)
    return program


def files() -> Iterator[tuple[str, Path | None]]:
    """Yield the files by name; nothing where one is not there."""
    cc1 = sorted(Path("/usr/lib/gcc/x86_64-linux-gnu").glob("*/cc1"))
    yield "libc", LIBRARIES / "libc.so.6"
    yield "python3.11", Path("/usr/bin/python3.11")
    yield "libcrypto", LIBRARIES / "libcrypto.so.3"
    yield "cc1", cc1[-1] if cc1 else None
    yield "a Rust program", _built("coverage_rust.rs", RUST, ["rustc", "-O"])
    yield "ripgrep (Rust)", Path("/usr/bin/rg")
    yield "a Go program", _built("coverage_go.go", GO, ["go", "build"])


def coverage_rows(report: Report, share: float) -> None:
    """Plan all files, then arm instructions of a working interpreter."""
    for name, path in files():
        if path is None or not path.exists():
            report.skip(f"reached in {name}", "not installed")
            continue
        try:
            _file_rows(report, name, path, share)
        except Exception as error:  # the other files are of interest all the same
            report.add(f"reached in {name}", "failed", "", False, f"{type(error).__name__}: {error}")
    _armed_row(report, round(ARMED * share))


def _file_rows(report: Report, name: str, path: Path, share: float) -> None:
    from coverage import Survey

    survey = Survey(str(path))
    flow = survey.flow()
    report.add(
        f"{name}: complete control flow", f"{flow.share:.3f} % of {len(flow.functions):,} functions", ">= 99 %",
        flow.share >= 99, *(f"{survey.name_of(f)}: {why.detail}" for f, why in flow.refused[:20]),
    )  # fmt: skip
    ends = survey.ends()
    complete = ends.complete()
    report.add(
        "  entries and exits by jumps", f"{ends.share:.3f} % of {ends.wanted:,}", ">= 99.9 %",
        ends.share >= 99.9, _said(ends.reasons()),
    )  # fmt: skip
    report.add(
        "  of functions with complete control flow", f"{complete.share:.4f} % of {complete.wanted:,}", ">= 99.99 %",
        complete.share >= 99.99, *(f"{survey.name_of(f)}: {why}" for f, _, why in complete.refused[:20]),
    )  # fmt: skip
    whole = share == 1.0
    alone = survey.alone(None if whole else ALONE)
    report.add(
        f"  instructions, each alone, {_part(survey, alone)}", f"{alone.share:.3f} %", ">= 99.9 %",
        alone.share >= 99.9, _said(alone.reasons()),
    )  # fmt: skip
    once = survey.at_once(None if whole else MOST)
    report.add(
        f"  instructions, at once, {_part(survey, once)}", f"{once.share:.3f} %", ">= 99 %", once.share >= 99,
        f"{_said(once.reasons())}; {survey.mappings} pages of springboards",
    )  # fmt: skip


def _part(survey: "Survey", tally: "Tally") -> str:
    """Return how many of the file's instructions were planned."""
    every = tally.wanted == survey.instruction_count
    return f"all {tally.wanted:,}" if every else f"{tally.wanted:,} of {survey.instruction_count:,}"


def _armed_row(report: Report, count: int) -> None:
    """Arm a sample of instructions of a working interpreter, each alone in its function, in rounds; run and remove."""
    from live.test_sampled_instructions import SEED, armed_and_run

    with redirect_stderr(StringIO()) as said:
        share, _, _ = armed_and_run(count, 400)
    report.add(
        "a sample of instructions armed and run, each alone", f"{100 * share:.3f} %", ">= 99.9 %", share >= 0.999,
        f"of python3.11, libc, libcrypto, libz and libm, half of them in functions that ran; seed {SEED}",
        said.getvalue().strip(),
    )  # fmt: skip


def _said(reasons: dict[str, int]) -> str:
    return "refused: " + (", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items())) or "nothing")
