"""LLVM itself: from its language as text to an object file. Loaded when the first handler is compiled."""

import functools
import itertools
import re
from collections.abc import Callable

from llvmlite import binding

_EXTREME = re.compile(
    r"^ *(?P<name>%\S+) = (?:\w+ )*call (?:\w+(?:\(.*?\))? )*?"
    r"(?P<kind>i\d+) @llvm\.(?P<sign>[su])(?P<which>min|max)\.i\d+"
    r"\((?P=kind) (?:noundef )?(?P<left>[^ ,]+), (?P=kind) (?:noundef )?(?P<right>[^ ,)]+)\).*$",
    re.MULTILINE,
)


@functools.cache
def _ready() -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.initialize_native_asmparser()  # updates are written as instructions


@functools.cache
def _machine(triple: str, processor: str) -> binding.TargetMachine:
    _ready()
    target = binding.Target.from_triple(triple)
    return target.create_target_machine(cpu=processor, opt=2, reloc="pic", codemodel="small")


def object_code(text: str, triple: str, processor: str, prepare: Callable[[str], str] | None = None) -> bytes:
    """Optimise and compile a module, of which ``prepare`` changes the text before instructions are chosen.

    Raises ``RuntimeError`` with LLVM's words.
    """
    machine = _machine(triple, processor)
    module = binding.parse_assembly(text)
    options = binding.create_pipeline_tuning_options(speed_level=2)
    # more code is slower here: a patch runs once in a while, out of a cold cache
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    if prepare is not None:
        module = binding.parse_assembly(prepare(str(module)))
    content: bytes = machine.emit_object(module)
    return content


def without_extremes(text: str) -> str:
    """Have minima and maxima of an optimised module be comparisons and choices.

    LLVM takes a comparison with one, in a loop, for two with its operands (``sinkMinMax`` in its BPFCheckAndAdjustIR),
    also where one is signed and the other is not: of x < min(a, -5), unsigned, it makes x < a and x < -5, which differs
    where a is not negative.

    Raises ``RuntimeError`` if it cannot read one.
    """
    numbers = itertools.count()

    def chosen(match: re.Match[str]) -> str:
        name, kind, sign, which, left, right = match.group("name", "kind", "sign", "which", "left", "right")
        test, order = f"%extreme.{next(numbers)}", sign + {"min": "lt", "max": "gt"}[which]
        choice = f"select i1 {test}, {kind} {left}, {kind} {right}"
        return f"  {test} = icmp {order} {kind} {left}, {right}\n  {name} = {choice}"

    text = _EXTREME.sub(chosen, text)
    if re.search(r"call .*@llvm\.[su](min|max)\.", text):
        raise RuntimeError("a minimum or maximum is written in a way that is not known")
    return text


def optimised(text: str, triple: str, processor: str) -> str:
    """Return the assembly of a module, to look at."""
    machine = _machine(triple, processor)
    module = binding.parse_assembly(text)
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))
