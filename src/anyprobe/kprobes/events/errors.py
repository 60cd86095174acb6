"""What is wrong with a definition, in the kernel's words, with a caret under the place."""

import errno
from enum import Enum

from anyprobe.core.errors import UsageError


class Problem(Enum):
    """The kernel's messages."""

    FILE_NOT_FOUND = "Failed to find the given file"
    NO_REGULAR_FILE = "Not a regular file"
    BAD_REFCNT = "Invalid reference counter offset"
    REFCNT_OPEN_BRACE = "Reference counter brace is not closed"
    BAD_REFCNT_SUFFIX = "Reference counter has wrong suffix"
    BAD_UPROBE_OFFS = "Invalid uprobe offset"
    MAXACT_NO_KPROBE = "Maxactive is not for kprobe"
    BAD_MAXACT = "Invalid maxactive number"
    MAXACT_TOO_BIG = "Maxactive is too big"
    BAD_PROBE_ADDR = "Invalid probed address or symbol"
    NON_UNIQ_SYMBOL = "The symbol is not unique"
    BAD_RETPROBE = "Retprobe address must be an function entry"
    BAD_ADDR_SUFFIX = "Invalid probed address suffix"
    NO_GROUP_NAME = "Group name is not specified"
    GROUP_TOO_LONG = "Group name is too long"
    BAD_GROUP_NAME = "Group name must follow the same rules as C identifiers"
    NO_EVENT_NAME = "Event name is not specified"
    EVENT_TOO_LONG = "Event name is too long"
    BAD_EVENT_NAME = "Event name must follow the same rules as C identifiers"
    RETVAL_ON_PROBE = "$retval is not available on probe"
    BAD_STACK_NUM = "Invalid stack number"
    BAD_ARG_NUM = "Invalid argument number"
    BAD_VAR = "Invalid $-valiable specified"
    BAD_REG_NAME = "Invalid register name"
    BAD_MEM_ADDR = "Invalid memory address"
    BAD_IMM = "Invalid immediate value"
    IMMSTR_NO_CLOSE = "String is not closed with '\"'"
    FILE_ON_KPROBE = "File offset is not available with kprobe"
    BAD_FILE_OFFS = "Invalid file offset value"
    SYM_ON_UPROBE = "Symbol is not available with uprobe"
    TOO_MANY_OPS = "Dereference is too much nested"
    DEREF_NEED_BRACE = "Dereference needs a brace"
    BAD_DEREF_OFFS = "Invalid dereference offset"
    DEREF_OPEN_BRACE = "Dereference brace is not closed"
    COMM_CANT_DEREF = "$comm can not be dereferenced"
    BAD_FETCH_ARG = "Invalid fetch argument"
    ARRAY_NO_CLOSE = "Array is not closed"
    BAD_ARRAY_SUFFIX = "Array has wrong suffix"
    BAD_ARRAY_NUM = "Invalid array size"
    ARRAY_TOO_BIG = "Array number is too big"
    BAD_TYPE = "Unknown type is specified"
    BAD_STRING = "String accepts only memory argument"
    BAD_BITFIELD = "Invalid bitfield"
    ARG_NAME_TOO_LONG = "Argument name is too long"
    NO_ARG_NAME = "Argument name is not specified"
    BAD_ARG_NAME = "Argument name must follow the same rules as C identifiers"
    USED_ARG_NAME = "This argument name is already used"
    ARG_TOO_LONG = "Argument expression is too long"
    NO_ARG_BODY = "No argument expression"
    BAD_INSN_BNDRY = "Probe point is not an instruction boundary"
    FAIL_REG_PROBE = "Failed to register probe event"
    DIFF_PROBE_TYPE = "Probe type is different from existing probe"
    DIFF_ARG_TYPE = "Argument type or name is different from existing probe"
    SAME_PROBE = "There is already the exact same probe event"
    NEED_STRING_TYPE = "$comm and immediate-string only accepts string type"
    TOO_MANY_ARGS = "Too many arguments are specified"
    NO_EVENT = "There is no such event"
    BUSY = "The event is enabled"
    NO_COMMAND = "A definition begins with p, r or -"


class DefinitionError(UsageError):
    """A definition that cannot be had: the kernel's error number, and where in the line the reason is."""

    def __init__(
        self, line: str, position: int, problem: Problem, number: int = errno.EINVAL, detail: str = ""
    ) -> None:
        """Keep the parts; the text is the kernel's error log."""
        self.line, self.position, self.problem, self.errno, self.detail = line, position, problem, number, detail
        super().__init__(self.log() + (f"\n{detail}" if detail else ""))

    def log(self) -> str:
        """Return the entry of the kernel's error log."""
        lead = "  Command: "
        return f"trace_kprobe: error: {self.problem.value}\n{lead}{self.line}\n{' ' * (len(lead) + self.position)}^"
