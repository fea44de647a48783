# Set-up and the five things one does here. Every target works from an empty checkout and again after that.
#   make demo    build the bundled corpus through Dagster and ask it a question
#   make test    the whole test suite
#   make dev     Dagster's UI with every corpus, on 127.0.0.1:3000
#   make test-server    what only a real Qdrant server can show (GEORAG_QDRANT_URL)
#   make lint    ruff, mypy, import contracts
#   make clean   remove the environment and everything that was built
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-server dev lint snapshots constraints clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# An index that serves the CPU build of PyTorch (1 GB instead of 5): make demo TORCH_INDEX=<address>.
TORCH_INDEX ?=
# Worker processes of pytest; 0 runs in one process.
WORKERS ?= auto

export HF_HUB_OFFLINE := 1
export PYTHONUNBUFFERED := 1
export GEORAG_HOME ?= $(CURDIR)/.georag
export DAGSTER_HOME ?= $(CURDIR)/.dagster_home

help:
	@sed -n '1,7p' Makefile | sed 's/^# \{0,1\}//'

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "== environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or newer is needed; $$($(PYTHON) --version) was found. Try make PYTHON=python3.12" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@[ -x $(BIN)/uv ] || { $(BIN)/python -m ensurepip --upgrade >/dev/null; $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv; }
	@[ -z "$(TORCH_INDEX)" ] || $(BIN)/uv pip install --python $(BIN)/python --index-url "$(TORCH_INDEX)" -c constraints.txt torch
	@echo "== packages (the first time takes minutes: PyTorch is large)"
	@$(BIN)/uv pip install --python $(BIN)/python -c constraints.txt -b constraints.txt -e '.[dev]'
	@touch $@

# Only where there is none: DAGSTER_HOME may be somebody's own.
$(DAGSTER_HOME)/dagster.yaml: | dagster.yaml
	@mkdir -p $(@D) && cp dagster.yaml $@

demo: $(STAMP) $(DAGSTER_HOME)/dagster.yaml
	@echo "== building corpus 'ava' (American viticultural areas) through Dagster"
	@PYTHONWARNINGS=ignore:Function $(BIN)/dagster job execute -m georag_assets.definitions -j build_ava
	@echo "== asking it"
	@$(BIN)/georag status
	@$(BIN)/georag search "mountain vineyards bounded by a ridge line" --corpus ava --place "Napa Valley" -k 3

dev: $(STAMP) $(DAGSTER_HOME)/dagster.yaml
	@echo "== Dagster on http://127.0.0.1:3000 (stop with Ctrl-C)"
	@$(BIN)/dagster dev -w workspace.yaml -h 127.0.0.1 -p 3000

test: $(STAMP)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# Everything that needs a real Qdrant server: GEORAG_QDRANT_URL (and _API_KEY, _CA) say which.
test-server: $(STAMP)
	@[ -n "$${GEORAG_QDRANT_URL:-}" ] || { echo "Name the server: make test-server GEORAG_QDRANT_URL=http://127.0.0.1:6333" >&2; exit 1; }
	@$(BIN)/python -m pytest -m server -s -v --strict-markers $(ARGS) | tee $(VENV)/test-server.txt
	@grep -Eq '[1-9][0-9]* passed' $(VENV)/test-server.txt || { echo "no test ran against the server" >&2; exit 1; }

lint: $(STAMP)
	@echo "== ruff" && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "== mypy" && $(BIN)/mypy
	@echo "== import contracts" && $(BIN)/lint-imports

snapshots: $(STAMP)
	@$(BIN)/python -m pytest georag_assets_tests/defs --snapshot-update

# What is pinned and not installed (what builds the package, optional parts) stays as it is.
constraints: $(STAMP)
	@$(BIN)/uv pip freeze --python $(BIN)/python --exclude-editable --exclude pip > constraints.frozen
	@{ sed '/^[^#]/,$$d' constraints.txt; { cat constraints.frozen; grep '^[^#]' constraints.txt | while IFS='=' read -r name rest; \
	    do grep -q "^$$name==" constraints.frozen || echo "$$name=$$rest"; done; } | LC_ALL=C sort -f -t= -k1,1; } > constraints.new
	@mv constraints.new constraints.txt && rm constraints.frozen

clean:
	rm -rf $(VENV) .georag .dagster_home .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
