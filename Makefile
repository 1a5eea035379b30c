# `make serve` and `make test` are all a newcomer needs. Each creates .venv here if it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SERVE_READY := $(VENV)/.serve-ready
READY := $(VENV)/.ready
# Branch coverage of `core`: `make test` fails below 95 %; `make test COVERAGE=` runs without it.
# Measuring doubles the time of a test, so only these tests are measured: they suffice for it.
# Those that wait come first: the processors are busy with the others, and with `lint`.
MEASURED := $(wildcard tests/integration/test_chat_*.py) tests/tools \
	$(wildcard tests/integration/test_failure_modes_*.py tests/integration/test_compaction_*.py) \
	tests/integration/test_upstreams.py tests/importing tests/contract/test_store_without_shortcuts.py \
	$(filter-out %_machine.py %_of_stores.py,$(wildcard tests/properties/test_*.py)) tests/unit/core
COVERAGE ?= --cov=holdfast.core --cov-branch --cov-report=term:skip-covered --cov-fail-under=95

# Targets that run at the same time do not mix their output, if this version of make supports it.
WHOLE_OUTPUTS := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# Tests start many processes, and half of a start is compiling: keep compiled modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve test coverage compiled check lint bench docs soak format hooks dist clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(SERVE_READY)  ## run a gateway on SQLite with the demo model
	$(BIN)/holdfast serve

# Four processes for the rest: most of these tests wait for gateways.
test: $(READY)  ## run everything that CI runs
	$(MAKE) --jobs=2 $(WHOLE_OUTPUTS) lint coverage COMPILED=compiled
	$(BIN)/pytest -n 4 --dist worksteal $(MEASURED:%=--ignore=%)

coverage: $(READY) $(COMPILED)  ## run the tests that measure the coverage of core
	$(BIN)/pytest -n 3 --dist worksteal $(COVERAGE) $(MEASURED)

# The processes of a run import all tests at the same time: in a new checkout, each would compile
# all of them, and the packages that they import. One that imports them before leaves them compiled;
# the run itself reports errors.
compiled: $(READY)
	$(BIN)/pytest --collect-only -qq > /dev/null || true

check: $(READY) lint  ## run the fast tests only
	$(BIN)/pytest tests/unit tests/test_code_rules.py tests/test_docs.py tests/test_exports.py

lint: $(READY)  ## check format, style, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(READY)  ## run the benchmarks and publish their ratios
	$(BIN)/python -m benchmarks --publish

docs: $(READY)  ## build the documentation site in build/site
	$(BIN)/python -m website

soak: $(READY)  ## run the long tests and every fault, all parts or those of PART="n ..."
	$(BIN)/python -m tests.soak $(PART)

format: $(READY)  ## format the code and fix style errors
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

hooks: $(READY)  ## install the pre-commit hooks
	$(BIN)/pre-commit install

dist: $(READY)  ## build the wheel of the last commit in dist
	rm -rf build/source dist
	mkdir -p build/source
	git archive HEAD | tar -x -C build/source
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist build/source

# Serving needs few packages; tests, benchmarks and docs need all of them.
$(SERVE_READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $(SERVE_READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile -e ".[all,dev]"
	touch $(SERVE_READY) $(READY)

clean:  ## remove everything that was built or installed here
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .coverage*
