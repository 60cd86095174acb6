"""Handlers in C: compiled by the system's compiler, or given as an object file, and checked before they are placed."""

import copy
import functools
import os
import re
import struct
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Self

from iced_x86 import Register, RegisterExt

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.core.errors import HandlerError, InternalError, UsageError
from anyprobe.handlers.x86.footprint import footprint
from anyprobe.isa.decode import decode_range

if TYPE_CHECKING:
    from anyprobe.handlers.llvm.object_file import ObjectFile

HEADER = os.path.join(os.path.dirname(__file__), "anyprobe.h")
"""What C handlers are compiled with; those in object files include it."""
ENTRY = "handler"
_FLAGS = (
    "-O2", "-fPIE", "-fvisibility=hidden", "-ffreestanding", "-ffunction-sections", "-mno-red-zone",
    "-mgeneral-regs-only", "-fno-stack-protector", "-fcf-protection=none", "-fno-asynchronous-unwind-tables",
    "-fno-exceptions", "-fno-jump-tables", "-fno-tree-loop-distribute-patterns", "-fno-strict-aliasing", "-w",
)  # fmt: skip
_REGISTERS = (
    "rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax", "rbx", "rbp", "rsp", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
_CONTEXT = ("tid", "pid", "cpu", "now", "caller")
_ROUTINES = {"read_": "read", "read_text_": "read_text"}
_MESSAGE = r"(?m)^(?P<file>[^:\n]+):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: (?P<text>.*)$"
_RELOCATABLE, _X86_64 = 1, 62
_TIMEOUT = 60


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Bytes that a C handler keeps things in."""

    size: int


@dataclass(frozen=True, slots=True)
class State:
    """What a C handler has for a storage."""

    layout: StateLayout

    @property
    def signature(self) -> str:
        """Everything that the code depends on: C code knows its own state."""
        return f"state {self.layout.size}"


class CHandler(ABC):
    """A handler in C; ``state`` bytes of memory are its own, and are read by ``words`` where they are whole numbers."""

    def __init__(self, name: str, *, state: int = 0) -> None:
        """Use ``CSource`` or ``CObject``."""
        self.__name__, self._state_bytes = name, state
        self.views: list[memoryview] = []

    def without_state(self) -> Self:
        """Return the same handler, placed nowhere, for another process."""
        twin = copy.copy(self)
        twin.views = []
        return twin

    @property
    def storage(self) -> State:
        """What is to be mapped for it."""
        return State(StateLayout(max(self._state_bytes, 8)))

    def words(self) -> list[int]:
        """Return the words of the state as they are now, summed up over the sessions that it has been placed in."""
        columns = [view[: self._state_bytes // 8 * 8].cast("Q").tolist() for view in self.views]
        return [sum(row) & (1 << 64) - 1 for row in zip(*columns, strict=True)]

    def __call__(self, *_: object) -> NoReturn:
        """Refuse: it runs in programs."""
        raise UsageError(f"{self.__name__} runs in the program that is probed; it cannot be called here")

    def compiled(self) -> NativeCode:
        """Return the code, checked; raise ``HandlerError`` for what cannot be placed."""
        content, mentioned = self._object()
        return _checked(self.__name__, content, mentioned)

    @abstractmethod
    def _object(self) -> tuple[bytes, frozenset[str] | None]:
        """Return the object file, and the words that its source mentions, if they are known."""


class CSource(CHandler):
    """C source with ``int handler(struct anyprobe_ctx *ctx)``; ``anyprobe.h`` is included already."""

    def __init__(self, text: str, *, state: int = 0, compiler: str = "cc", flags: Sequence[str] = ()) -> None:
        """Keep the text; it is compiled when it is placed."""
        super().__init__("C handler", state=state)
        self._text, self._compiler, self._flags = text, compiler, tuple(flags)

    def _object(self) -> tuple[bytes, frozenset[str] | None]:
        if self._flags or re.search(r"#\s*include|##", self._text):
            # who knows what else is used; and what it includes may be another text the next time
            return _compile.__wrapped__(self._text, self._compiler, self._flags), None
        content = _compile(self._text, self._compiler, self._flags)
        # a word that the source does not mention is not filled in
        mentioned = frozenset(re.findall(r"\w+", self._text))
        if "anyprobe_on_stack" in mentioned:
            mentioned |= {"rsp", "anyprobe_read"}
        mentioned |= {"read_"} if "anyprobe_read" in mentioned else set()
        mentioned |= {"read_text_"} if "anyprobe_text" in mentioned else set()
        return content, mentioned


class CObject(CHandler):
    """An object file with ``int handler(struct anyprobe_ctx *ctx)``, made with ``anyprobe.h`` and ``CObject.FLAGS``."""

    FLAGS, HEADER = _FLAGS, HEADER

    def __init__(self, path: str | os.PathLike[str], *, state: int = 0) -> None:
        """Keep the path; the file is read when the handler is placed."""
        super().__init__(os.path.basename(path), state=state)
        self._path = os.path.abspath(path)

    def _object(self) -> tuple[bytes, frozenset[str] | None]:
        try:
            with open(self._path, "rb") as file:
                return file.read(), None
        except OSError as error:
            raise HandlerError(f"{self._path}: {error.strerror}") from None


@functools.lru_cache(maxsize=32)
def _compile(text: str, compiler: str, flags: tuple[str, ...]) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="anyprobe-") as folder:
        path = os.path.join(folder, "handler.o")
        command = [compiler, *_FLAGS, *flags, "-include", HEADER, "-x", "c", "-", "-c", "-o", path]
        try:
            done = subprocess.run(
                command, input=text, capture_output=True, text=True, timeout=_TIMEOUT, check=False,
                env=dict(os.environ, LC_ALL="C"),
            )  # fmt: skip
        except OSError as error:
            raise HandlerError(f"C handlers need a C compiler: {compiler}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise HandlerError(f"{compiler} takes more than {_TIMEOUT} s for this handler") from None
        if done.returncode:
            raise _complaint(text, done.stderr)
        with open(path, "rb") as file:
            return file.read()


def _complaint(text: str, said: str) -> HandlerError:
    """Return what the compiler said first as an error that points at the source."""
    found = re.search(_MESSAGE, said)
    if found is None:
        return HandlerError("the C compiler refuses the handler:\n" + said.strip())
    lines, line = text.splitlines(), int(found["line"])
    own = found["file"] == "<stdin>" and 0 < line <= len(lines)
    return HandlerError(
        found["text"],
        file="<C handler>" if own else found["file"],
        line=line,
        column=int(found["column"]),
        source=lines[line - 1] if own else "",
    )


def _checked(name: str, content: bytes, mentioned: frozenset[str] | None) -> NativeCode:
    from anyprobe.handlers.llvm.object_file import ObjectFile, linked

    if content[:4] != b"\x7fELF" or struct.unpack_from("<HH", content, 16) != (_RELOCATABLE, _X86_64):
        raise HandlerError(f"{name} is no object file of x86-64", instead="cc -c")
    try:
        _check_object(name, ObjectFile(content))
        image = linked(content, ENTRY)
        code = image.content[: image.code_bytes]
        _check_code(name, code)
        found = footprint(code, preserving=False)
    except (struct.error, IndexError, ValueError):
        raise HandlerError(f"{name} is a damaged object file") from None
    except InternalError as error:
        raise HandlerError(f"{name} cannot be placed: {error}") from None
    inputs = (
        *(_wanted(Input(InputKind.REGISTER, each), each, mentioned) for each in _REGISTERS),
        *(_wanted(Input(InputKind.CONTEXT, each), each, mentioned) for each in _CONTEXT),
        Input(InputKind.STORAGE),
        *(_wanted(Input(InputKind.ROUTINE, each), word, mentioned) for word, each in _ROUTINES.items()),
    )
    return NativeCode(image.content, inputs, found.clobbers, found.stack, 0, returns=True)


def _wanted(word: Input, name: str, mentioned: frozenset[str] | None) -> Input:
    """Return an input, or one that costs nothing where the code does not read it."""
    return word if mentioned is None or name in mentioned else Input(InputKind.REGISTER, "rdi")


def _check_object(name: str, found: "ObjectFile") -> None:
    from anyprobe.handlers.llvm.object_file import RELATIVE

    entry = next((each for each in found.symbols if each.name == ENTRY and each.section), None)
    if entry is None:
        raise HandlerError(f"{name} has no function {ENTRY}", instead="int handler(struct anyprobe_ctx *ctx) { … }")
    used = [each for each in found.relocations if found.sections[each.section].needed]
    missing = sorted({each.symbol.name for each in used if not each.symbol.section and each.symbol.name})
    if missing:
        raise HandlerError(
            f"{name} needs {', '.join(missing)}, and a handler can call nothing of the program",
            instead="static inline functions of its own, and those of anyprobe.h",
        )
    changeable = [each for each in found.sections if each.writable and each.needed and each.content]
    written = [each.name for each in changeable if not each.name.startswith(".data.rel.ro")]
    if written:
        raise HandlerError(
            f"{name} has variables that it can change ({', '.join(written)}), for which there is no place",
            instead="ctx->state, and const for tables",
        )
    if any(each.kind not in RELATIVE for each in used):
        raise HandlerError(f"{name} depends on the address at which it is placed", instead="-fPIE -fvisibility=hidden")


def _check_code(name: str, code: bytes) -> None:
    for insn in decode_range(code, 0):
        iced = insn.iced
        if iced.is_call_near:
            raise HandlerError(
                f"{name} has functions that were not put into one (a recursion?), so its stack has no bound",
                instead="static inline __attribute__((always_inline))",
            )
        for operand in range(iced.op_count):
            register = iced.op_register(operand)
            if register != Register.NONE and not (
                RegisterExt.is_gpr(register) or register in {Register.RIP, Register.FS, Register.GS}
            ):
                raise HandlerError(f"{name} uses vector registers", instead="-mgeneral-regs-only")
