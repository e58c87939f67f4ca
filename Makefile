# Needs make and Python 3.11 or newer; everything else goes into .venv.

PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-rgw test-server check worlds campaign bench clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-15s %s\n", $$1, $$2 }'

$(SETUP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

demo: $(SETUP) ## Run the demo on a simulated S3
	$(BIN)/python examples/demo.py

test: $(SETUP) ## Run the tests
	$(BIN)/python -m pytest -n 2

test-rgw: $(SETUP) ## Run what needs a server on a real one, Ceph's RADOS Gateway; see infra/README.md
	$(BIN)/python -m pytest -n 2 --s3 rgw -m "not campaign and not wheel"

# The server pins what it needs, so it gets an environment of its own.
.venv-server/ready: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/python -m pip install --quiet --editable '.[async]' --group server
	@touch $@

test-server: .venv-server/ready ## Drive Agent Server (langgraph dev) on the saver
	.venv-server/bin/python -m pytest -m server tests/test_agent_server.py

check: $(SETUP) ## Check format, lint, types and layers, and test the built wheel
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m wheel

# The two worlds that an asynchronous program on AWS lives in. They cannot be one: each pins botocore where the other
# cannot follow.
WORLDS := .venv-aioboto3 .venv-aiobotocore
.venv-aioboto3/ready: REQUIREMENTS := '.[aioboto3]' 'aioboto3==15.5.*' 'botocore==1.40.*'
.venv-aiobotocore/ready: REQUIREMENTS := '.[async]' 'aiobotocore>=3' 'boto3>=1.43' 'langchain-aws>=1.9'

$(WORLDS:=/ready): pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/python -m pip install --quiet --editable $(REQUIREMENTS) --group test
	$(@D)/bin/python -m pip check
	@touch $@

worlds: $(WORLDS:=/ready) ## Run the asynchronous tests beside aioboto3, and beside the newest boto3 and langchain-aws
	for world in $(WORLDS); do \
		$$world/bin/python -m pip list 2>/dev/null | grep -E '^(aio|boto|langchain-aws)'; \
		$$world/bin/python -m pytest -n 2 -k 'aio or async' \
			tests/test_aio.py tests/test_aio_cancellation.py tests/test_conformance.py tests/test_drivers.py \
			tests/test_graphs.py || exit 1; \
	done

campaign: $(SETUP) ## Search for rare failures, for an hour or more
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-campaign} $(BIN)/python -m pytest -m campaign -n 2
	RACES=600 $(BIN)/python -m pytest tests/test_interleavings.py -n 2

bench: $(SETUP) ## Measure beside other savers, in about a quarter of an hour; writes docs/benchmarks.md
	$(BIN)/python benchmarks/core.py
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.throughput

clean: ## Remove what the other targets made
	rm -rf .venv .venv-server $(WORLDS) .bench dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
