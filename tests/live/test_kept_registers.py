"""Code in which registers outlive calls and returns that functions may change, with every instruction counted."""

import pytest

import anyprobe
from anyprobe.probes.providers.function import wholesale
from support.image import Image

SOURCE = "keeps_registers.c"
LIBRARY = ("-shared", "-fPIC", "-mtls-dialect=gnu2")
SIZES = {"library": 8, "dynamic": 1 << 20}
"""What fits the memory that every thread has from the beginning, and what each gets when it asks."""

THUNKS = {"gcc": ("-mindirect-branch=thunk", "-fcf-protection=none"), "clang": ("-mretpoline",)}
"""How the program is made, so that its calls through pointers go by code that ends in a return."""


@pytest.mark.sliced(2)
@pytest.mark.parametrize("compiler", list(THUNKS))
@pytest.mark.parametrize("kind", ["block", "insn"])
def test_registers_survive_where_code_keeps_them(run_target, compiled, monkeypatch, kind, compiler):
    """The descriptors' functions are the loader's, those of contexts the C library's; whole modules are looked at."""
    monkeypatch.setattr(wholesale, "_MANY", 1)
    monkeypatch.setattr(wholesale, "_SHARE", 1 << 20)
    libraries = [str(compiled(SOURCE, *LIBRARY, f"-DBYTES={size}")) for size in SIZES.values()]
    target = run_target(SOURCE, *libraries, options=THUNKS[compiler], compiler=compiler)
    target.go(3)
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count(
            *(f"{code}%{kind}" for code in ("ld-*:*", "keeps_registers:*", "libc.so.6:*context")), "a.out:begin"
        )
        target.go(50)
        hits = {}
        for site in session.snapshot().sites:
            hits[site.module, site.function] = hits.get((site.module, site.function), 0) + site.hits
    before.assert_restored(target.pid)
    target.finish()
    assert hits["keeps_registers", "begin"] >= 2 * 50  # its entry, and what is in it
    assert hits["libc.so.6", "swapcontext"] >= 50
    assert sum(value for (module, _), value in hits.items() if module.startswith("ld-")) >= 50 * len(libraries)
