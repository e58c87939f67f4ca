# Needs make and Python 3.11 or newer; everything else goes into .venv.

PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/ready

.DEFAULT_GOAL := help
.PHONY: help demo test check campaign bench clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-15s %s\n", $$1, $$2 }'

$(SETUP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

demo: $(SETUP) ## Run the demo on a simulated S3
	$(BIN)/python examples/demo.py

test: $(SETUP) ## Run the tests
	$(BIN)/python -m pytest -n 2

check: $(SETUP) ## Check format, lint, types and layers, and test the built wheel
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m wheel

campaign: $(SETUP) ## Search for rare failures, for an hour or more
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-campaign} $(BIN)/python -m pytest -m campaign -n 2
	RACES=600 $(BIN)/python -m pytest tests/test_interleavings.py -n 2

bench: $(SETUP) ## Measure round trips, requests and time
	$(BIN)/python benchmarks/core.py

clean: ## Remove what the other targets made
	rm -rf .venv dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
