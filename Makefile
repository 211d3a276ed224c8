# Every target sets up what it needs in .venv, so each works on a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# two test processes on two cores: more threads would only get in each other's way
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

.PHONY: setup demo test test-all test-browser test-gpu lint bench docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/lagreach study run livi-v1 --scale smoke --out runs/demo --overwrite

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(PYTEST) -m "not slow and not gpu and not browser"
	@echo "Tests of the report in a real browser: make test-browser"

test-all: lint
	HYPOTHESIS_PROFILE=search $(PYTEST) -m "not gpu and not browser"

# Chromium and its driver come from the system's packages: only root can install them
test-browser: setup
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; \
	else echo "No browser here: install the packages chromium and chromium-driver, then run this again."; exit 1; fi
	OMP_NUM_THREADS=1 $(BIN)/pytest -m browser tests/browser

test-gpu: setup
	$(BIN)/pytest -m gpu

bench: setup
	$(BIN)/python -m benchmarks

docs: setup
	$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
