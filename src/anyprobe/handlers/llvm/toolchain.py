"""LLVM itself: from its language as text to an object file. Loaded when the first handler is compiled."""

import functools
import itertools
import re

from llvmlite import binding

from anyprobe.core.errors import HandlerError

_EXTREME = re.compile(
    r"^ *(?P<name>%\S+) = (?:\w+ )*call (?:\w+(?:\(.*?\))? )*?"
    r"(?P<kind>i\d+) @llvm\.(?P<sign>[su])(?P<which>min|max)\.i\d+"
    r"\((?P=kind) (?:noundef )?(?P<left>[^ ,]+), (?P=kind) (?:noundef )?(?P<right>[^ ,)]+)\).*$",
    re.MULTILINE,
)
_WIDE = re.compile(r"(?<=[ (\[<])i(6[5-9]|[7-9]\d|\d{3,})\b")
_MOST_LINES = 6000
"""A branch spans 32,767 instructions at most; a line becomes three or four."""


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


def object_code(text: str, triple: str, processor: str) -> bytes:
    """Optimise and compile a module; raise ``RuntimeError`` with LLVM's words."""
    machine = _machine(triple, processor)
    module = binding.parse_assembly(text)
    _optimise(module, machine)
    content: bytes = machine.emit_object(module)
    return content


def kernel_code(text: str, triple: str, processor: str) -> bytes:
    """Optimise and compile a module for the kernel; raise ``HandlerError`` or ``RuntimeError`` if that cannot be.

    There LLVM ends the whole process where it cannot go on, so nothing of the kind may come to it.
    """
    _give_stack()
    machine = _machine(triple, processor)
    # or it takes words for less aligned, and reads them by halves
    laid_out = text.replace('target datalayout = ""', f'target datalayout = "{machine.target_data}"')
    for optimise in (_optimise, _simplify):
        module = binding.parse_assembly(laid_out)
        optimise(module, machine)
        found = str(module)
        if _WIDE.search(found) is None:
            break
    else:
        raise RuntimeError("an integer is wider than 64 bits")
    if found.count("\n") > _MOST_LINES:
        raise HandlerError("the handler is too long for the kernel: a branch would not reach its destination")
    content: bytes = machine.emit_object(binding.parse_assembly(without_extremes(found)))
    return content


def _optimise(module: binding.ModuleRef, machine: binding.TargetMachine) -> None:
    options = binding.create_pipeline_tuning_options(speed_level=2)
    # more code is slower here: a patch runs once in a while, out of a cold cache
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def _simplify(module: binding.ModuleRef, machine: binding.TargetMachine) -> None:
    """Optimise without what makes wider integers: closed forms of loops, products of more than 64 bits."""
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_sccp_pass()
    passes.add_aggressive_dce_pass()
    passes.run(module, builder)


@functools.cache
def _give_stack() -> None:
    """Leave it to the kernel to refuse what needs too much stack."""
    binding.set_option("anyprobe", f"-bpf-stack-size={1 << 20}")


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
        # no name in a handler has a space
        test, order = f'%"extreme {next(numbers)}"', sign + {"min": "lt", "max": "gt"}[which]
        choice = f"select i1 {test}, {kind} {left}, {kind} {right}"
        return f"  {test} = icmp {order} {kind} {left}, {right}\n  {name} = {choice}"

    text = _EXTREME.sub(chosen, text)
    if re.search(r"call .*@llvm\.[su](min|max)\.", text):
        raise RuntimeError("a minimum or maximum is written in a way that is not known")
    return text
