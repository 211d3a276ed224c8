# Every target sets up what it needs in .venv, so each works on a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# two test processes on two cores: more threads would only get in each other's way
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

.PHONY: setup demo test test-all test-gpu lint bench docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/lagreach demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(PYTEST) -m "not slow and not gpu"

test-all: lint
	HYPOTHESIS_PROFILE=search $(PYTEST) -m "not gpu"

test-gpu: setup
	$(BIN)/pytest -m gpu

bench: setup
	$(BIN)/python -m benchmarks

docs: setup
	$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
