# Thin names over the real commands. `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export DO_NOT_TRACK := true
export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export GX_ANALYTICS_ENABLED := false
export HF_HUB_DISABLE_TELEMETRY := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test check test-slow test-chaos bench format deps constraints clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(INSTALLED) ## make .venv with every package at its pinned version

# A recent pip first: old ones search for minutes over this set. torch before the rest, so that no package asks for another build.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed, $$($(PYTHON) --version 2>&1) found; name another one: make PYTHON=python3.11"; exit 3; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=26'
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(INSTALLED) ## run the whole DAG on the sample corpus and print what came out
	$(BIN)/train-llm demo

test: check ## every check and every default test
	$(BIN)/python -m pytest

check: $(INSTALLED) ## lint, format, types, import floors, code dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m flows.code_deps

test-slow: $(INSTALLED) ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-chaos: $(INSTALLED) ## kill processes at random moments
	$(BIN)/python -m pytest -m chaos

bench: $(INSTALLED) ## measure speed, peers side by side
	$(BIN)/python -m benchmarks

format: $(INSTALLED) ## put the source into its form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

deps: $(INSTALLED) ## write the code dependencies of dvc.yaml from the import graph
	$(BIN)/python -m flows.code_deps --write

constraints: $(INSTALLED) ## pin what is installed now
	{ head -1 constraints.txt; $(BIN)/python -m pip list --format=freeze | grep -viE '^(train-llm|pip|setuptools|wheel)==' | sed 's/+cpu//' | sort -f; } > .constraints.new
	mv .constraints.new constraints.txt

clean: ## remove outputs and state; keeps .venv and the DVC cache
	rm -rf .state data/snapshot data/ingest data/clean data/dedupe data/tokenize data/split data/validate data/train data/evaluate data/quantize data/report data/metrics
