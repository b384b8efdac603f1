# Covey: `make` lists the targets. Everything is installed in .venv, nothing outside this directory.

PYTHON ?= python3
# One file stays in one process: the code blocks of a page build on each other.
PYTEST_FLAGS ?= --numprocesses=auto --dist=loadfile

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input

# .venv is stale when it was made in another directory, by another Python, or no longer runs.
IDENTITY := import sys; print(sys.base_prefix, *sys.version.split())
WANTED := $(CURDIR) $(shell $(PYTHON) -c '$(IDENTITY)' 2>/dev/null)
FOUND := $(shell cat .venv/made 2>/dev/null) $(shell $(BIN)/python -c '$(IDENTITY)' 2>/dev/null)

.PHONY: help track test lint docs bench reproduce clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12
	@echo
	@echo 'Another interpreter: make PYTHON=python3.13 test. One test file: make test PYTEST_FLAGS=tests/test_run.py'

track: .venv/with-all ## track the volatility of a simulated series with the particle filters
	@$(BIN)/covey reproduce volatility

test: .venv/with-dev ## run the tests, the examples in docstrings and the code in the documentation
	@$(BIN)/pytest $(PYTEST_FLAGS)

lint: .venv/with-dev ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/with-dev ## build the documentation in build/docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs
	@echo 'Open build/docs/index.html'

bench: .venv/with-bench ## measure speed and accuracy against other libraries
	@$(BIN)/python -m benchmarks

reproduce: .venv/with-all ## repeat the published experiments: 200 replicates, 2000 data sets
	@$(BIN)/covey reproduce volatility --replicates 200
	@echo
	@$(BIN)/covey reproduce seeding --datasets 2000

clean: ## remove .venv and everything built or cached
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

ifneq ($(FOUND),$(WANTED))
.PHONY: .venv/made
endif

.venv/made:
	@$(PYTHON) -c '' 2>/dev/null || { \
	  echo 'Covey needs Python 3.11 or newer, and $(PYTHON) does not run; install it or name another: make PYTHON=python3.13' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Covey needs Python 3.11 or newer, got $$($(PYTHON) --version 2>&1); name another: make PYTHON=python3.13" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo '$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	@echo 'Making .venv'
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	@echo '$(CURDIR)' > $@

.venv/with-all: .venv/made pyproject.toml constraints.txt
	@echo 'Installing covey[all]'
	@$(PIP) --editable '.[all]' --constraint constraints.txt
	@touch $@

.venv/with-dev: .venv/made pyproject.toml constraints.txt
	@echo 'Installing covey[all,dev]'
	@$(PIP) --editable '.[all,dev]' --constraint constraints.txt
	@touch $@ .venv/with-all

.venv/with-bench: .venv/made pyproject.toml constraints.txt constraints-bench.txt
	@echo 'Installing covey[all,bench]'
	@$(PIP) --editable '.[all,bench]' --constraint constraints.txt --constraint constraints-bench.txt
	@touch $@ .venv/with-all
