"""Names as programmers wrote them: C++ and Rust symbols demangled, on demand."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

# What compilers append to a mangled name for a part or a copy of a function; not part of the mangling.
_CLONE = re.compile(r"^(_(?:Z|R).+?)((?:\.(?:cold|part|isra|constprop|llvm|clone|lto_priv|localalias|resolver|\w+))*)$")
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}$")
_RUST_ESCAPES = {
    "$SP$": "@",
    "$BP$": "*",
    "$RF$": "&",
    "$LT$": "<",
    "$GT$": ">",
    "$LP$": "(",
    "$RP$": ")",
    "$C$": ",",
}
_INHERENT = re.compile(r"^<([\w:]+)>(::.+)$")
_RUST_CODE = re.compile(r"\$u([0-9a-f]{1,6})\$")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_LAMBDA = re.compile(r"'(lambda|unnamed)(\d*)'")
_GENERIC = re.compile(r"\bauto:\d+")
_CLONE_MARK = re.compile(r"\s*\[clone ([\w.$]+)\]")
_STREAMS = ("string", "istream", "ostream", "iostream")
# Itanium mangling has letters for these instead of their names; constructors of them do not show the name.
_ABBREVIATED = frozenset(["std", "allocator", *(f"{each}{kind}" for each in ("", "basic_") for kind in _STREAMS)])
_OPENING, _CLOSING = "(<[{", ")>]}"


@dataclass(frozen=True, slots=True)
class Spelling:
    """The ways in which a programmer may write one function's name."""

    full: str
    """With the parameter list: ``ns::f<int>(char)``."""
    plain: str
    """Without it: ``ns::f<int>``."""
    bare: str
    """Without template arguments either: ``ns::f``."""

    @staticmethod
    def normal(name: str) -> str:
        """Return a name without the blanks that do not tell names apart, and as other demanglers spell it."""
        name = _CLONE_MARK.sub(r"\1", name)
        name = _GENERIC.sub("auto", numbered_lambdas(name))
        return re.sub(r"\s+(?=\W)|(?<=\W)\s+", "", name.strip())

    def normalised(self) -> "Spelling":
        """Return all spellings without such blanks."""
        return Spelling(*(self.normal(each) for each in (self.full, self.plain, self.bare)))

    def __contains__(self, name: object) -> bool:
        """Return whether a name is one of the spellings."""
        return name in (self.full, self.plain, self.bare)

    def matches(self, pattern: Callable[[str], object]) -> bool:
        """Return whether one of the spellings matches a pattern."""
        found = pattern(self.full) is not None or (self.plain is not self.full and pattern(self.plain) is not None)
        return found or (self.bare is not self.plain and pattern(self.bare) is not None)


def is_mangled(name: str) -> bool:
    """Return whether a name looks like one that a C++ or Rust compiler made."""
    return name.startswith(("_Z", "_R", "__Z"))


@lru_cache(maxsize=200_000)
def spellings(name: str) -> Spelling:
    """Return the spellings of a symbol; a name that cannot be demangled is spelled as it is."""
    found = ((each, _demangle(each[0])) for each in _without_clone_marks(name))
    (mangled, suffix), text = next((each for each in found if each[1] is not None), ((name, ""), None))
    if text is None:
        return Spelling(name, name, name)
    plain = text if mangled[1] == "R" else _without_parameters(text)
    bare = _without_template(plain).removesuffix("::")  # Rust writes f::<T>
    inherent = _INHERENT.match(bare)  # <ns::S>::f is what everybody calls ns::S::f
    bare = inherent[1] + inherent[2] if inherent else bare
    return Spelling(text + suffix, plain + suffix, bare + suffix)


def _without_clone_marks(name: str) -> Iterator[tuple[str, str]]:
    """Yield the ways to cut a symbol into what is mangled and what says which copy or part it is.

    Coroutines have dots in what is mangled, too: the type of their frames is called ``_Z4coroi.Frame``.
    """
    if _CLONE.match(name) is None:
        return
    at = name.find(".")
    while at >= 0:
        yield name[:at], name[at:]
        at = name.find(".", at + 1)
    yield name, ""


def numbered_lambdas(text: str) -> str:
    """Return a name with its lambdas as gdb and GCC write them: ``{lambda(int)#1}``, and not ``'lambda'(int)``."""
    found = _LAMBDA.search(text)
    while found is not None:
        number = int(found[2]) + 2 if found[2] else 1
        end = found.end()
        if found[1] == "lambda":
            end = _after_brackets(text, end)
        kind = "lambda" if found[1] == "lambda" else "unnamed type"
        text = f"{text[: found.start()]}{{{kind}{text[found.end() : end]}#{number}}}{text[end:]}"
        found = _LAMBDA.search(text)
    return text


def _after_brackets(text: str, at: int) -> int:
    """Return where the brackets that open at an offset are closed."""
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] in _OPENING) - (text[end] in _CLOSING)
        if depth <= 0:
            return end + 1 if end > at else at
    return len(text)


def mangled_hint(name: str) -> str:
    """Return a piece that every mangled form of a name has: its last identifier after its length, or nothing.

    It keeps the search for one demangled name from demangling a whole library.
    """
    head = _without_template(_without_parameters(_CLONE_MARK.sub("", name))).partition(".")[0]  # f.cold is a part of f
    last = _IDENTIFIER.findall(head)
    if "operator" in head or not last or last[-1] in _ABBREVIATED or not head.endswith(last[-1]):
        return ""
    return last[-1] if last[-1].startswith("_") else f"{len(last[-1])}{last[-1]}"  # Rust writes an underscore between


def _demangle(mangled: str) -> str | None:
    try:
        import pycxxfilt

        text = pycxxfilt.rust_demangle(mangled) if mangled[1] == "R" else pycxxfilt.itanium_demangle(mangled)
    except (ValueError, ImportError):  # without the library, names stay as they are
        return None
    if text and _RUST_HASH.search(text):
        return _rust_legacy(text)
    return numbered_lambdas(text) if text and "'" in text else text


def _rust_legacy(text: str) -> str:
    """Undo what Rust's older mangling adds to the C++ one: a hash and escapes."""
    text = _RUST_HASH.sub("", text)
    for escape, character in _RUST_ESCAPES.items():
        text = text.replace(escape, character)
    text = _RUST_CODE.sub(lambda found: chr(int(found[1], 16)), text)
    # A path element may not begin with an escape, so the compiler puts an underscore before it.
    return re.sub(r"(^|::)_(?=[<{(*&\[])", r"\1", text.replace("..", "::"))


def _without_parameters(text: str) -> str:
    """Return a C++ name without parameter list, qualifiers after it and return type before it."""
    end = text.rfind(")")
    if end < 0:
        return text
    depth = 0
    for at in range(end, -1, -1):
        if text[at] == ")":
            depth += 1
        elif text[at] == "(":
            depth -= 1
            if depth == 0:
                break
    head = text[:at]
    is_name = head.endswith(("::", "<")) and not head.endswith(("operator<", "operator<<"))
    if not head or is_name or text[end + 1 :].startswith("::"):
        return text  # the parentheses belong to the name: (anonymous namespace)::x
    return _without_return_type(head)


def _without_return_type(head: str) -> str:
    """Return the name alone; the demangler writes the return types of templates."""
    operator = head.rfind("operator")
    limit = head.rfind(" ", 0, operator if operator >= 0 else len(head)) + 1  # nothing is cut after the last one
    depth = 0
    cut = 0
    for at, character in enumerate(head[:limit]):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == " " and depth == 0:
            cut = at + 1
    return head[cut:]


def _without_template(plain: str) -> str:
    """Return a name without the template arguments at its end."""
    if not plain.endswith(">") or plain.endswith(("operator>", "operator>>", "operator->", "operator<=>")):
        return plain
    depth = 0
    for at in range(len(plain) - 1, -1, -1):
        if plain[at] == ">":
            depth += 1
        elif plain[at] == "<":
            depth -= 1
            if depth == 0:
                return plain[:at] if at else plain
    return plain
