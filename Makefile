# The only task file. Every target does its own set-up; a second run of `make setup` takes well under a second.
PYTHON ?= python3
VENV := .venv
# Files of tests that run at one time.
WORKERS ?= 3
BIN := $(VENV)/bin
COMPILE = pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
    --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host
STAMP := $(VENV)/.stamp
FRIDA := 17.26.0
PYARROW := 26.0.1
DISTRIBUTED := 2026.8.0

# python3-venv only where the interpreter in use lacks ensurepip, see $(STAMP).
DEMO_PACKAGES := python3.11 redis-server redis-tools
TEST_PACKAGES := $(DEMO_PACKAGES) bc binutils bolt-16 busybox-static chromium clang coreutils g++ gcc golang-go gzip lcov libc6-dev libpython3.11-testsuite musl-tools nginx nodejs openjdk-17-jdk-headless openmpi-bin openssh-client openssh-server openssl perl procps prometheus python3.11-dbg qemu-user ripgrep sqlite3 valgrind xz-utils zstd

KERNELS := 6.1 6.12 6.1-rt
# Runs a guest, and plans what it splices, many times as fast.
PLANNED := $(BIN)/python tests/support/place_planner.py

# Tests of single modules that together take longer than all others; `make test` has them.
LONG := $(addprefix tests/unit/,binary/decoding/test_kept_lines.py binary/decoding/test_many_bodies.py binary/discovery/test_unlisted.py \
    binary/dwarf/test_debug_info.py binary/flow/test_jump_tables.py binary/flow/test_survey.py binary/images/test_image.py \
    handlers/llvm/test_maps.py handlers/llvm/test_rings.py handlers/llvm/test_updates.py handlers/test_compile_cache.py \
    handlers/test_differential.py isa/test_displaced_execution.py isa/test_relocate.py probes/specs/test_naming.py \
    splice/codegen/test_fronts.py splice/codegen/test_full_tables.py splice/codegen/test_nested_calls.py \
    splice/codegen/test_routines.py splice/codegen/test_switches.py splice/kernel/test_kernel_handlers.py \
    splice/plan/test_kept_plans.py test_watchdog.py)

.PHONY: dist setup check test lint live guest test-kernel bench demo docs torture torture-kernel lock packages bench-packages clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "anyprobe needs Python 3.11 or newer; set PYTHON" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || tools/debian-packages.sh python3-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

packages:
	@tools/debian-packages.sh $(TEST_PACKAGES)

# Without debug symbols, as programs are as a rule; where these are installed, there are more functions to be found.
bench-packages:
	@tools/debian-packages.sh $(filter-out %-dbg,$(TEST_PACKAGES))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What a contributor runs first, and before each commit: nothing is installed but what `make setup` does, no process is traced.
check: lint
	$(BIN)/pytest -q -n $(WORKERS) --dist loadfile $(addprefix --ignore ,$(LONG)) tests/unit

# In the order of their names the short files come last, so that no process waits long for the other.
# pyarrow and distributed are optional for users; without them the tests of Arrow, Parquet and Dask are skipped.
test:
	@$(MAKE) --no-print-directory -j2 packages lint
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check pyarrow==$(PYARROW) 2>/dev/null || echo "pyarrow cannot be installed; its tests are left out" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check distributed==$(DISTRIBUTED) 2>/dev/null || echo "distributed cannot be installed; its test is left out" >&2
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 1 --durations 20

live: packages setup
	$(BIN)/pytest tests/live

# Machines under QEMU's emulation with Debian's kernels, in the user's cache. 125: they cannot be had here; said, no failure.
guest:
	@for kernel in $(KERNELS); do tools/guest --make -k $$kernel || test $$? -eq 125 || exit 1; done

# All tests in guests, on each kernel; where no guest can be had, that is said.
test-kernel: packages setup
	@for kernel in $(KERNELS); do \
	    PYTHONPATH=tests $(BIN)/python -m support.guest_driver $$kernel || exit 1; \
	    $(PLANNED) tools/guest -k $$kernel -t 7200 '$(BIN)/python -m pytest -p no:cacheprovider tests/kernel' || test $$? -eq 125 || exit 1; \
	done
	@tools/guest -a module.sig_enforce=1 '$(BIN)/python -m pytest -p no:cacheprovider tests/kernel/test_signatures.py' || test $$? -eq 125
	@tools/guest -a lockdown=confidentiality '$(BIN)/python -m pytest -p no:cacheprovider tests/kernel/test_lockdown.py' || test $$? -eq 125
	@tools/guest -a anyprobe_test=closed '$(BIN)/python -m pytest -p no:cacheprovider tests/kernel/test_driver_rights.py -k takes_no_new_code' || test $$? -eq 125
	@tools/guest --icount -t 1200 '$(BIN)/python -m pytest -p no:cacheprovider -rP --timeout 0 tests/kernel/test_costs.py' || test $$? -eq 125

torture: packages setup
	$(BIN)/pytest --torture -s --timeout 3600 tests/torture
	$(BIN)/pytest --torture -m "sliced or torture" --timeout 3600 tests/unit tests/live
	@$(PLANNED) tools/guest -t 3000 '$(BIN)/python -m pytest -p no:cacheprovider --torture -m torture tests/kernel' || test $$? -eq 125
	ANYPROBE_EXAMPLES=1000 $(BIN)/pytest --timeout 3600 tests/unit/handlers/test_differential.py

# Splices of the kernel: all that is long, on each kernel, and where it can be chosen with and without preemption.
torture-kernel: packages setup
	@for kernel in $(KERNELS); do \
	    PYTHONPATH=tests $(BIN)/python -m support.guest_driver $$kernel || exit 1; \
	    for preempt in $$(case $$kernel in *-rt) echo rt;; *) echo voluntary full;; esac); do \
	        echo "Linux $$kernel, preempt=$$preempt"; \
	        $(PLANNED) tools/guest -k $$kernel -a preempt=$$preempt -t 14400 '$(BIN)/python -m pytest -p no:cacheprovider --torture --timeout 7200 tests/kernel/test_driver*.py tests/kernel/test_*splice*.py' || test $$? -eq 125 || exit 1; \
	    done; \
	done

# Frida is a peer to measure, not a dependency.
bench: bench-packages setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check frida==$(FRIDA) 2>/dev/null || echo "frida cannot be installed; its rows are left out" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check pyarrow==$(PYARROW) 2>/dev/null || echo "pyarrow cannot be installed; its row is left out" >&2
	$(BIN)/python bench/run.py

demo: setup
	@tools/debian-packages.sh $(DEMO_PACKAGES)
	@$(BIN)/python examples/demo.py

# The documents and the public API as HTML in build/docs. Sphinx is installed here, not by `make setup`.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html docs build/docs
	@echo "build/docs/index.html"

# sdist and wheel in dist, with manual pages; checked, and tried without a checkout.
dist: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dist.lock
	rm -rf dist man build/lib build/bdist.*
	$(BIN)/python tools/manual_pages.py man "$$($(BIN)/python -c 'import importlib.metadata as m; print(m.version("anyprobe"))')"
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/twine check --strict dist/*
	tools/try_wheel.sh $(PYTHON)

# Needs pip-tools, e.g. `pipx install pip-tools`. The files name no index: pip is told from outside where to look.
lock:
	$(PYTHON) tools/lock.py | $(COMPILE) --output-file requirements.lock -
	for each in docs dist; do $(PYTHON) tools/lock.py $$each | $(COMPILE) --constraint requirements.lock --output-file requirements-$$each.lock - || exit 1; done

clean:
	rm -rf $(VENV) build dist man src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
