"""What rustc makes: matches without a default, panics that never return."""

import shutil
import subprocess

import pytest

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.images.image import Image

ARMS = "\n".join(f"        {n} => value.wrapping_mul({2 * n + 3}) ^ {n}," for n in range(12))
SOURCE = f"""
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Kind {{ {", ".join(f"K{n}" for n in range(9))} }}

#[no_mangle]
#[inline(never)]
pub extern "C" fn choose(which: u32, value: u32, out: &mut u32) -> u32 {{
    *out += 1;
    match which {{
{ARMS}
        _ => panic!("no such thing"),
    }}
}}

#[no_mangle]
#[inline(never)]
pub extern "C" fn of_kind(kind: Kind, out: &mut [u32; 9]) {{
    match kind {{
        {", ".join(f"Kind::K{n} => {{ out[{n}] = out[{8 - n}].wrapping_mul({n + 3}); out[{(n + 1) % 9}] ^= {n} }}" for n in range(9))}
    }}
}}
"""  # noqa: E501


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    folder = tmp_path_factory.mktemp("rust")
    (folder / "lib.rs").write_text(SOURCE)
    command = ["rustc", "-O", "--crate-type", "cdylib", "-o", folder / "libchoose.so", folder / "lib.rs"]
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode:
        pytest.skip(f"rustc cannot build here: {outcome.stderr[-200:]}")
    return Image.open(str(folder / "libchoose.so"))


@pytest.mark.parametrize("name", ["choose", "of_kind"])
def test_matches_lead_to_known_places(module, name):
    (found,) = module.functions.lookup(name)
    code = CodeMap(module.text(), module.cold_parts).function_at(found.start)
    assert code.complete is None
    assert not any(leaving.indirect for leaving in code.exits.found)
    for table in code.tables.values():
        assert all(code.is_boundary(target) for target in table.targets)


def test_most_of_the_standard_library_is_known(module):
    """A few hundred functions of Rust's own come along."""
    text = module.text()
    code_map = CodeMap(text, module.cold_parts)
    functions = [code_map.function_at(start) for start in text.function_starts.tolist()]
    unknown = [function for function in functions if function.complete is not None]
    assert len(functions) > 200
    assert len(unknown) <= len(functions) // 100, [str(function.complete) for function in unknown]
