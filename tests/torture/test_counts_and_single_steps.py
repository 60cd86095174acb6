"""A static program with its C library, every instruction of what runs, beside a debugger that goes step by step."""

import subprocess

from support.independent import differences, fixed_addresses, run_counted, single_stepped, specs_of_functions, text_of


def test_all_instructions_of_a_static_program(compiled, tmp_path):
    program = compiled("library_user.c", "-static", "-no-pie", "-lm")
    with fixed_addresses():
        plain = subprocess.run([program], stdout=subprocess.PIPE, env={})
        status, stepped = single_stepped(program, *text_of(program), tmp_path)
        assert status == plain.returncode
        expected, entries, _ = run_counted([program], ["a.out:*"], tmp_path, environment={}, path=False)
        specs = specs_of_functions(entries)
        output, _, modules = run_counted([program], specs, tmp_path, environment={}, path=False)
    assert output == expected == plain.stdout
    (module,) = (each for name, each in modules.items() if name == program.name)
    found = differences(module, {at: count for at, count in stepped.items() if at in module.hits})
    equal = sum(count > 0 and stepped[at] == count for at, count in module.hits.items())
    elsewhere = {at: count for at, count in stepped.items() if at not in module.hits and at not in module.refused}
    print(f"{equal} instructions equal, {sum(stepped.values())} steps, {len(module.refused)} refused, "
          f"{sum(elsewhere.values())} steps in {len(elsewhere)} instructions that were not asked for")  # fmt: skip
    assert not found
    assert equal > 5000
