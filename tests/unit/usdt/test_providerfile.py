"""DTrace's provider files: what they declare, and where a mistake is shown."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.cli import main
from anyprobe.core.errors import SourceError
from anyprobe.usdt.header import header
from anyprobe.usdt.providerfile import POINTER, parse_provider_file

FILE = """
/* PostgreSQL's has lines like these. */
#define LocalTransactionId unsigned int
#define Path const char *
#include <sys/types.h>
#pragma D attributes Evolving/Evolving/Common provider myapp provider
typedef unsigned char flag, *flags;
typedef struct { int a; } hidden_t;
struct thing { int a; struct { int b; } c; };

provider myapp {
    probe transaction-start(LocalTransactionId id, const char *name); // a comment
    probe query__done();
    probe nothing(void);
    probe types(char, signed char, flag, short int, unsigned long int, long long unsigned, float, double x,
                bool, enum colour, size_t, uint8_t n);
    probe pointers(void *, struct thing *t, char **argv, int numbers[4], flags, string, Path, int (*called)(int, long),
                   hidden_t *);
    probe own(my_type value) : (info_t *shown, int more);
};
provider other { probe only(id_t); }
"""


def declared(text):
    return {f"{each.provider}:{each.name}": each for each in parse_provider_file(text, "app.d")}


def test_a_file_is_read():
    found = declared(FILE)
    assert list(found) == [
        "myapp:transaction__start", "myapp:query__done", "myapp:nothing", "myapp:types", "myapp:pointers", "myapp:own",
        "other:only",
    ]  # fmt: skip
    types = {name: [each.c_type for each in probe.arguments] for name, probe in found.items()}
    assert types["myapp:transaction__start"] == ["unsigned int", POINTER]
    assert types["myapp:query__done"] == types["myapp:nothing"] == []
    assert types["myapp:types"] == [
        "char", "signed char", "unsigned char", "short", "unsigned long", "unsigned long long", "float", "double",
        "_Bool", "int", "unsigned long", "unsigned char",
    ]  # fmt: skip
    assert set(types["myapp:pointers"]) == {POINTER}
    assert types["myapp:own"] == ["my_type"]
    assert types["other:only"] == ["unsigned int"]
    assert found["myapp:transaction__start"].arguments[1].shown == "const char *name"


def test_the_macros_are_those_that_dtrace_makes():
    text = header(parse_provider_file(FILE, "app.d"), "app.d")
    assert "#define MYAPP_TRANSACTION_START(arg0, arg1) \\" in text
    assert "#define MYAPP_TRANSACTION_START_ENABLED()" in text
    assert "#define DTRACE_PROBE12(provider, name, arg0" in text
    assert "ANYPROBE_USDT_SEMAPHORE(myapp_transaction__start_semaphore);" in text


WRONG = [
    ("provider p { probe a(int; };", 1, 25, "';' is neither , nor )"),
    ("provider p {\n  probe a(int)\n  probe b();\n};", 3, 3, "; is missing after probe a"),
    ("provider p {\n\tprobe a(struct s);\n};", 2, 10, "a struct is passed by its address"),
    ("provider p {\n  probe a(unsigned float x);\n};", 2, 11, "unsigned float is no type"),
    ("provider p { probe a(long double); };", 1, 22, "a long double cannot be passed"),
    ("provider p { probe a(int, void); };", 1, 27, "nothing can be passed as void"),
    ("provider p { prob a(); };", 1, 14, "'prob' begins no probe"),
    ("provider p { probe a();", 1, 24, "provider p does not end"),
    ("provider 7 { };", 1, 10, "'7' is no name of a provider"),
    ("provider p { probe a(); probe a(); };", 1, 31, "p has a probe a already"),
    ("provider p { }; provider p { };", 1, 26, "there is a provider p in the file already"),
    ("provider p { probe a(" + ", ".join(["int"] * 13) + "); };", 1, 82, "a probe has 12 arguments at most"),
    ("provider " + "p" * 60 + " { };", 1, 10, "the name is too long: tools take 59"),
    ("provider p { probe " + "a" * 64 + "(); };", 1, 20, "the name is too long: tools take 63"),
    ("provider p { probe a(]); };", 1, 22, "']' begins no type of an argument"),
    ("#ifdef X\nprovider p { };", 1, 1, "#ifdef is for the C preprocessor"),
    ("/* open\nprovider p { };", 1, 1, "this comment does not end"),
    ("int x;\nprovider p { };", 1, 1, "'int' is neither a provider nor a type"),
    ("typedef int;\nprovider p { };", 1, 12, "the typedef names nothing"),
    ("", 1, 1, "there is no provider in the file"),
]


@pytest.mark.parametrize(("text", "line", "column", "message"), WRONG)
def test_a_mistake_is_shown_with_line_and_caret(text, line, column, message):
    with pytest.raises(SourceError) as caught:
        parse_provider_file(text, "app.d")
    assert (message in caught.value.message, caught.value.line, caught.value.column) == (True, line, column)
    assert str(caught.value).startswith(f"app.d:{line}:{column}: ")
    if caught.value.source:
        assert "^" in str(caught.value)


WORDS = "provider|probe|p|a|int|char|struct|typedef|void|{|}|(|)|;|,|*|-|:|[|]|7|/*|*/|#"


@given(st.lists(st.sampled_from(WORDS.split("|"))))
def test_whatever_stands_in_a_file_is_read_or_refused(words):
    with suppress(SourceError):
        parse_provider_file(" ".join(words), "app.d")


def test_the_command_prints_or_writes_the_header(tmp_path, capsys):
    source, target = tmp_path / "app.d", tmp_path / "app.h"
    source.write_text(FILE)
    assert main(["usdt", "header", str(source)]) == 0
    printed = capsys.readouterr().out
    assert main(["usdt", "header", str(source), "-o", str(target)]) == 0
    assert target.read_text() == printed
    assert "/* USDT probes of app.d, made by anyprobe usdt header. */" in printed


def test_the_command_shows_mistakes_as_compilers_do(tmp_path, capsys):
    source = tmp_path / "app.d"
    source.write_text("provider p {\n  probe a(struct s);\n};\n")
    assert main(["usdt", "header", str(source)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{source}:2:11: a struct is passed by its address",
        "    probe a(struct s);",
        "            ^",
        "instead: struct s *",
    ]
    assert main(["usdt", "header", str(source), "-o", str(tmp_path)]) == 2
    assert main(["usdt", "header", str(tmp_path / "none.d")]) == 2
