"""DTrace's provider files (``.d``): which probes a provider has, and the types of their arguments.

Comments, ``#pragma`` and ``#include`` are passed by, ``typedef`` and ``#define`` of types are followed. A type that the
file does not explain is the C program's own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from anyprobe.core.errors import SourceError
from anyprobe.usdt.limits import LONGEST_NAME, LONGEST_PROVIDER, MOST_ARGUMENTS

POINTER = "const volatile void *"
_INT, _UINT, _LONG, _ULONG = "int", "unsigned int", "long", "unsigned long"
_KNOWN = {
    "int8_t": "signed char", "int16_t": "short", "int32_t": _INT, "int64_t": _LONG, "uint8_t": "unsigned char",
    "uint16_t": "unsigned short", "uint32_t": _UINT, "uint64_t": _ULONG, "intptr_t": _LONG, "uintptr_t": _ULONG,
    "size_t": _ULONG, "ssize_t": _LONG, "off_t": _LONG, "ptrdiff_t": _LONG, "time_t": _LONG, "clock_t": _LONG,
    "id_t": _UINT, "pid_t": _INT, "uid_t": _UINT, "gid_t": _UINT, "mode_t": _UINT, "dev_t": _ULONG, "ino_t": _ULONG,
    "uchar_t": "unsigned char", "ushort_t": "unsigned short", "uint_t": _UINT, "ulong_t": _ULONG,
    "longlong_t": "long long", "u_longlong_t": "unsigned long long", "hrtime_t": "long long", "boolean_t": _INT,
    "processorid_t": _INT, "zoneid_t": _INT, "bool": "_Bool", "string": POINTER, "va_list": POINTER,
}  # fmt: skip
"""What names of types mean on x86-64 Linux, besides those that a file has itself."""
_WORDS = {"signed", "unsigned", "short", "long", "int", "char", "float", "double", "void", "_Bool"}
_WHOLE = {
    "char": "char", "signed char": "signed char", "unsigned char": "unsigned char", "short": "short",
    "unsigned short": "unsigned short", "int": _INT, "unsigned": _UINT, "long": _LONG, "unsigned long": _ULONG,
    "long long": "long long", "unsigned long long": "unsigned long long", "float": "float", "double": "double",
    "_Bool": "_Bool", "void": "void", "": _INT,
}  # fmt: skip
_QUALIFIERS = {"const", "volatile", "restrict", "register", "__restrict", "in", "out", "extern", "static"}
_TAGS = ("struct", "union", "enum")
_TOKEN = re.compile(r"\s*(?:([A-Za-z_]\w*)|(\d\w*)|(\.\.\.|.))", re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_LINE = re.compile(r"^[ \t]*#[ \t]*(\w*)((?:[^\n\\]|\\.|\\\n)*)", re.MULTILINE | re.DOTALL)
_DEFINE = re.compile(r"\s*(\w+)\s+(\S.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DeclaredArgument:
    """An argument of a probe: the C type that it is passed as, and how the file has it."""

    c_type: str
    shown: str

    @property
    def size(self) -> int | None:
        """Bytes, ``None`` of a type that only the program knows."""
        return 8 if self.c_type == POINTER else _SIZES.get(self.c_type)

    @property
    def signed(self) -> bool:
        """Whether it may be negative."""
        return self.c_type in ("char", "signed char", "short", _INT, _LONG, "long long")


_SIZES = {
    "char": 1, "signed char": 1, "unsigned char": 1, "_Bool": 1, "short": 2, "unsigned short": 2, _INT: 4, _UINT: 4,
    "float": 4, _LONG: 8, _ULONG: 8, "long long": 8, "unsigned long long": 8, "double": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeclaredProbe:
    """A probe of a file; its name as notes have it, with two underscores for a dash."""

    provider: str
    name: str
    arguments: tuple[DeclaredArgument, ...]


def parse_provider_file(text: str, file: str) -> list[DeclaredProbe]:
    """Return the probes that a provider file declares; raise ``SourceError`` with line and caret."""
    return _Reader(text, file).read()


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    at: int

    @property
    def is_name(self) -> bool:
        return bool(re.match(r"[A-Za-z_]", self.text))


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._types: dict[str, str] = {}
        plain = _COMMENT.sub(_blanked, text)
        unfinished = plain.find("/*")
        if unfinished >= 0:
            raise self._error(unfinished, "this comment does not end")
        self._defined: list[tuple[str, str, int]] = []
        plain = _LINE.sub(self._directive, plain)
        self._tokens = list(_tokens(plain))
        self._next = 0
        for name, meaning, at in self._defined:
            self._define(name, meaning, at)

    def read(self) -> list[DeclaredProbe]:
        found: list[DeclaredProbe] = []
        providers: set[str] = set()
        while self._peek().text:
            token = self._peek()
            if token.text == "typedef":
                self._typedef()
            elif token.text == "provider":
                found += self._provider(providers)
            elif token.text in _TAGS:
                self._skip_declaration()
            elif token.text == ";":
                self._take()
            else:
                raise self._error(token.at, f"{token.text!r} is neither a provider nor a type", "provider NAME {")
        if not providers:
            raise self._error(0, "there is no provider in the file", "provider NAME { probe NAME(int); };")
        return found

    def _directive(self, found: re.Match[str]) -> str:
        """Look at a line of the preprocessor, and return blanks in its place."""
        word, rest = found[1], found[2]
        if word in ("if", "ifdef", "ifndef", "else", "elif", "endif"):
            at = found.start() + found[0].index("#")
            raise self._error(at, f"#{word} is for the C preprocessor", "run cpp -P on the file first")
        if word == "define":
            named = _DEFINE.match(rest)
            if named is not None and "(" not in named[2]:
                self._defined.append((named[1], named[2], found.start()))
        return _blanked(found)

    def _define(self, name: str, meaning: str, at: int) -> None:
        """Follow a ``#define`` if it names a type."""
        words = meaning.replace("*", " * ").split()
        if all(re.fullmatch(r"\*|[A-Za-z_]\w*", word) for word in words):
            pointer = "*" in words
            plain = " ".join(word for word in words if word != "*")
            self._types[name] = POINTER if pointer else self._meaning(plain.split(), at)

    def _typedef(self) -> None:
        self._take()
        base = self._base(where="a typedef")
        while True:
            c_type, name = self._declarator(base)
            if name is None:
                raise self._error(self._peek().at, "the typedef names nothing", "typedef TYPE NAME;")
            self._types[name.text] = c_type
            if self._peek().text != ",":
                break
            self._take()
        self._expect(";", "after a typedef")

    def _skip_declaration(self) -> None:
        """Pass by a declaration of a struct: only its address can be passed."""
        depth, start = 0, self._peek()
        while True:
            token = self._take()
            depth += (token.text == "{") - (token.text == "}")
            if not token.text:
                raise self._error(start.at, "this declaration does not end")
            if token.text == ";" and not depth:
                return

    def _provider(self, providers: set[str]) -> Iterator[DeclaredProbe]:
        self._take()
        name = self._name("a provider", LONGEST_PROVIDER)
        if name.text in providers:
            raise self._error(name.at, f"there is a provider {name.text} in the file already")
        providers.add(name.text)
        self._expect("{", f"after the name of provider {name.text}")
        seen: set[str] = set()
        while self._peek().text != "}":
            token = self._take()
            if token.text != "probe":
                what = f"{token.text!r} begins no probe" if token.text else f"provider {name.text} does not end"
                raise self._error(token.at, what, "probe NAME(TYPE, …);" if token.text else "};")
            yield self._probe(name.text, seen)
        self._take()
        if self._peek().text == ";":
            self._take()

    def _probe(self, provider: str, seen: set[str]) -> DeclaredProbe:
        first = self._name("a probe", LONGEST_NAME)
        name = first.text
        while self._peek().text == "-":
            self._take()
            name += "__" + self._name("a probe", LONGEST_NAME).text
        if len(name) > LONGEST_NAME:
            raise self._error(first.at, f"the name is too long: tools take {LONGEST_NAME} characters")
        if name in seen:
            raise self._error(first.at, f"{provider} has a probe {name} already")
        seen.add(name)
        arguments = self._arguments()
        if self._peek().text == ":":  # what DTrace makes of the arguments for its scripts; the program passes the first
            self._take()
            self._arguments()
        self._expect(";", f"after probe {name}")
        return DeclaredProbe(provider, name, arguments)

    def _arguments(self) -> tuple[DeclaredArgument, ...]:
        opening = self._expect("(", "before the types of the arguments")
        found: list[DeclaredArgument] = []
        if self._peek().text == ")":
            self._take()
            return ()
        while True:
            start = self._peek()
            if len(found) == MOST_ARGUMENTS:
                raise self._error(start.at, f"a probe has {MOST_ARGUMENTS} arguments at most")
            c_type, _ = self._declarator(self._base(where="an argument"))
            end = self._peek()
            shown = " ".join(_COMMENT.sub(" ", self._text[start.at : end.at]).split())
            if c_type == "void":
                if found or end.text != ")":
                    raise self._error(start.at, "nothing can be passed as void", "void *")
                self._take()
                return ()
            if c_type in _TAGS:
                raise self._error(start.at, f"a {c_type} is passed by its address", f"{shown} *")
            found.append(DeclaredArgument(c_type, shown))
            token = self._take()
            if token.text == ")":
                return tuple(found)
            if token.text != ",":
                raise self._error(
                    token.at or opening.at, f"{token.text or 'the end'!r} is neither , nor )", "TYPE, TYPE)"
                )

    def _base(self, *, where: str) -> str:
        """Return what the words of a type mean, without pointers."""
        words: list[str] = []
        start = self._peek()
        while self._peek().is_name:
            token = self._peek()
            known = token.text in _QUALIFIERS | _WORDS
            if not known and any(each not in _QUALIFIERS for each in words):
                break
            self._take()
            words.append(token.text)
            if token.text in _TAGS:
                if self._peek().is_name:
                    self._take()
                if self._peek().text == "{":
                    self._enclosed("{", "}", "this brace is not closed")
        if not words:
            raise self._error(
                start.at, f"{start.text or 'the end'!r} begins no type of {where}", "int, char *, uint64_t"
            )
        return self._meaning(words, start.at)

    def _enclosed(self, opening: str, closing: str, message: str) -> None:
        """Pass by what a pair of brackets encloses, the opening one first; ``message``: if it is not closed."""
        depth, start = 0, self._peek()
        while True:
            token = self._take()
            depth += (token.text == opening) - (token.text == closing)
            if not token.text:
                raise self._error(start.at, message)
            if not depth:
                return

    def _meaning(self, words: list[str], at: int) -> str:
        plain = [each for each in words if each not in _QUALIFIERS]
        if plain and plain[0] in _TAGS:
            return _INT if plain[0] == "enum" else plain[0]
        if len(plain) == 1 and plain[0] not in _WORDS:
            return self._types.get(plain[0]) or _KNOWN.get(plain[0]) or plain[0]
        unsigned, signed, longs = "unsigned" in plain, "signed" in plain, plain.count("long")
        rest = [each for each in plain if each not in ("signed", "unsigned", "long", "int")]
        if longs and rest == ["double"]:
            raise self._error(at, "a long double cannot be passed", "double")
        key = " ".join(["unsigned"] * unsigned + ["signed"] * (signed and rest == ["char"]) + ["long"] * longs + rest)
        if key not in _WHOLE:
            raise self._error(at, f"{' '.join(words)} is no type", "int, unsigned long, char *")
        return _WHOLE[key]

    def _declarator(self, base: str) -> tuple[str, _Token | None]:
        """Return the type with the pointers and brackets of one declarator, and its name."""
        c_type, name = base, None
        while self._peek().text == "*" or self._peek().text in _QUALIFIERS:
            c_type = POINTER if self._take().text == "*" else c_type
        if self._peek().text == "(":  # the address of a function
            for _ in range(2):  # its name, and its parameters
                if self._peek().text == "(":
                    self._enclosed("(", ")", "this parenthesis is not closed")
            return POINTER, None
        if self._peek().is_name:
            name = self._take()
        while self._peek().text == "[":
            c_type = POINTER
            while self._take().text not in ("]", ""):
                pass
        return c_type, name

    def _name(self, what: str, longest: int) -> _Token:
        token = self._take()
        if not token.is_name:
            raise self._error(token.at, f"{token.text or 'the end'!r} is no name of {what}", "letters, digits and _")
        if len(token.text) > longest:
            raise self._error(token.at, f"the name is too long: tools take {longest} characters")
        return token

    def _expect(self, text: str, where: str) -> _Token:
        token = self._take()
        if token.text != text:
            raise self._error(token.at, f"{text} is missing {where}")
        return token

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _error(self, at: int, message: str, instead: str = "") -> SourceError:
        """Return the error at a place; what is missing at a line's end is shown there."""
        at = min(at, len(self._text))
        if at == len(self._text):
            at = len(self._text.rstrip())
        line = self._text.count("\n", 0, at)
        start = self._text.rfind("\n", 0, at) + 1
        source = self._text[start:].partition("\n")[0]
        return SourceError(
            message, file=self._file, line=line + 1, column=at - start + 1, source=source, instead=instead
        )  # fmt: skip


def _blanked(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while (found := _TOKEN.match(text, at)) is not None and found[0].strip():
        yield _Token(found[0].strip(), found.start(found.lastindex or 0))
        at = found.end()
    yield _Token("", len(text))
