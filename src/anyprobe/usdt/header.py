"""C and C++ headers with a provider's probes: macros that make the notes themselves, and need no other file."""

import re
from collections.abc import Sequence
from itertools import groupby

from anyprobe.usdt.limits import MOST_ARGUMENTS
from anyprobe.usdt.providerfile import DeclaredArgument, DeclaredProbe

_IN_REGISTERS = 6
"""Arguments that always are in registers; more would not be found where the code has few left.

Registers have their whole names (``%q``), since tools differ in the names of their parts.
"""
_ENGINE = r"""
#ifndef ANYPROBE_USDT_NOTE
#if defined(__x86_64__) && defined(__LP64__) && !defined(ANYPROBE_NO_USDT)
#define ANYPROBE_USDT_ON 1
#define ANYPROBE_USDT_NOTE(provider, name, semaphore, arguments) \
    "990: nop\n" \
    ".pushsection .note.stapsdt,\"?\",\"note\"\n" \
    ".balign 4\n" \
    ".4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n" \
    "992: .balign 4\n" \
    "993: .8byte 990b\n" \
    ".8byte _.stapsdt.base\n" \
    ".8byte " semaphore "\n" \
    ".asciz \"" provider "\"\n" \
    ".asciz \"" name "\"\n" \
    ".asciz \"" arguments "\"\n" \
    "994: .balign 4\n" \
    ".popsection\n" \
    ".ifndef _.stapsdt.base\n" \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
    ".weak _.stapsdt.base\n" \
    ".hidden _.stapsdt.base\n" \
    "_.stapsdt.base: .space 1\n" \
    ".size _.stapsdt.base, 1\n" \
    ".popsection\n" \
    ".endif\n"
#define ANYPROBE_USDT_SEMAPHORE(name) \
    __attribute__((weak, used, visibility("hidden"), section(".probes"))) unsigned short name = 0
#define ANYPROBE_USDT_LISTENED(name) ((int)__builtin_expect(*(volatile unsigned short *)&name, 0))
/* The size of a type in bytes, negative if its values may be. */
#define ANYPROBE_USDT_SIZE(type) \
    "n"((((type)-1 < (type)1) ? -1 : 1) * (int)sizeof(type))
#else
#define ANYPROBE_USDT_ON 0
#define ANYPROBE_USDT_NOTE(provider, name, semaphore, arguments)
#endif
#endif
"""


def header(probes: Sequence[DeclaredProbe], source: str) -> str:
    """Return the header of some probes; ``source`` is the name of the file that declares them."""
    guard = "ANYPROBE_USDT_" + re.sub(r"\W", "_", "_".join(dict.fromkeys(each.provider for each in probes))).upper()
    lines = [
        f"/* USDT probes of {source}, made by anyprobe usdt header. */",
        f"#ifndef {guard}_H",
        f"#define {guard}_H",
        "#pragma GCC system_header",
        _ENGINE.rstrip(),
    ]
    for provider, group in groupby(probes, key=lambda each: each.provider):
        own = list(group)
        lines += [
            "",
            f"/* provider {provider} */",
            "#if ANYPROBE_USDT_ON",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
        ]
        lines += [f"ANYPROBE_USDT_SEMAPHORE({_semaphore(each)});" for each in own]
        lines += ["#ifdef __cplusplus", "}", "#endif", ""]
        for each in own:
            lines += [
                *_macro(each),
                f"#define {_macro_name(each)}_ENABLED() ANYPROBE_USDT_LISTENED({_semaphore(each)})",
            ]
        lines += ["", "#else"]
        for each in own:
            lines += [f"#define {_macro_name(each)}({_parameters(each)}) do {{ }} while (0)"]
            lines += [f"#define {_macro_name(each)}_ENABLED() 0"]
        lines += ["#endif"]
    lines += ["", *_untyped(), "", "#endif"]
    return "\n".join(lines) + "\n"


def _macro(probe: DeclaredProbe) -> list[str]:
    texts: list[str] = []
    operands: list[str] = []
    for index, argument in enumerate(probe.arguments):
        size = argument.size
        if size is None:
            texts.append(f"%c{len(operands)}@%q{len(operands) + 1}")
            operands.append(f"ANYPROBE_USDT_SIZE({argument.c_type})")
        else:
            texts.append(f"{'-' if argument.signed else ''}{size}@%q{len(operands)}")
        operands.append(f'"{_constraint(index)}"({_cast(argument, f"arg{index}")})')
    shown = ", ".join(each.shown for each in probe.arguments)
    note = f'"{probe.provider}", "{probe.name}", "{_semaphore(probe)}", "{" ".join(texts)}"'
    return [
        f"/* {probe.name}({shown.replace('*/', '* /')}) */",
        f"#define {_macro_name(probe)}({_parameters(probe)}) \\",
        f"    do {{ __asm__ __volatile__(ANYPROBE_USDT_NOTE({note}) \\",
        f"        :: {', '.join(operands)}); }} while (0)",
    ]


def _cast(argument: DeclaredArgument, name: str) -> str:
    if argument.c_type == "_Bool":
        return f"(unsigned char)!!({name})"
    return f"({argument.c_type})({name})"


def _constraint(index: int) -> str:
    return "nr" if index < _IN_REGISTERS else "nor"


def _untyped() -> list[str]:
    """Return DTrace's macros for probes that no file declares; they have the types of what they are given."""
    lines = ["/* DTRACE_PROBE and its like, where sys/sdt.h has not made them */"]
    lines += ["#if !defined(DTRACE_PROBE) && !defined(_SYS_SDT_H)", "#if ANYPROBE_USDT_ON"]
    lines += ["#define ANYPROBE_USDT_TYPE(value) __typeof__((value) + 0)"]
    for count in range(MOST_ARGUMENTS + 1):
        names = [f"arg{index}" for index in range(count)]
        text = " ".join(f"%c{2 * index}@%q{2 * index + 1}" for index in range(count))
        operands = ", ".join(
            f'ANYPROBE_USDT_SIZE(ANYPROBE_USDT_TYPE({name})), "{_constraint(index)}"(({name}) + 0)'
            for index, name in enumerate(names)
        )
        lines += [
            f"#define DTRACE_PROBE{count or ''}({', '.join(('provider', 'name', *names))}) \\",
            f'    do {{ __asm__ __volatile__(ANYPROBE_USDT_NOTE(#provider, #name, "0", "{text}") \\',
            f"        :: {operands}); }} while (0)",
        ]
    lines += ["#else"]
    for count in range(MOST_ARGUMENTS + 1):
        names = ["provider", "name", *(f"arg{index}" for index in range(count))]
        lines += [f"#define DTRACE_PROBE{count or ''}({', '.join(names)}) do {{ }} while (0)"]
    return [*lines, "#endif", "#endif"]


def _parameters(probe: DeclaredProbe) -> str:
    return ", ".join(f"arg{index}" for index in range(len(probe.arguments)))


def _semaphore(probe: DeclaredProbe) -> str:
    return f"{probe.provider}_{probe.name}_semaphore"


def _macro_name(probe: DeclaredProbe) -> str:
    return f"{probe.provider}_{probe.name}".upper().replace("__", "_")
