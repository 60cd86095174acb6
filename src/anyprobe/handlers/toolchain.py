"""LLVM itself: from its language as text to an object file. Loaded when the first handler is compiled."""

import functools

from llvmlite import binding


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
    options = binding.create_pipeline_tuning_options(speed_level=2)
    # more code is slower here: a patch runs once in a while, out of a cold cache
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    content: bytes = machine.emit_object(module)
    return content


def optimised(text: str, triple: str, processor: str) -> str:
    """Return the assembly of a module, to look at."""
    machine = _machine(triple, processor)
    module = binding.parse_assembly(text)
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))
