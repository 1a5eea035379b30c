# Two commands matter to a newcomer: `make serve` and `make test`. Each makes its own venv here when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: serve test check bench docs soak format clean

serve: $(READY)  ## a working gateway on SQLite with the demo model
	$(BIN)/holdfast serve

test: $(READY) lint  ## everything CI runs
	$(BIN)/pytest -n 2 --dist worksteal

check: $(READY) lint  ## the fast loop
	$(BIN)/pytest tests/unit tests/test_house_rules.py tests/test_docs.py tests/test_exports.py

.PHONY: lint
lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(READY)  ## benchmarks, as ratios
	$(BIN)/python -m benchmarks --publish

docs: $(READY)  ## the documentation as a site, in build/site
	$(BIN)/python -m website

soak: $(READY)  ## long simulations, and every fault of tests/faults
	$(BIN)/pytest -n 2 --dist worksteal -m soak --timeout 7200 tests

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
