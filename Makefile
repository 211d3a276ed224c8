# Every target sets up what it needs in .venv, so each works on a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# two test processes on two cores: more threads would only get in each other's way.
# Byte code is kept, since many tests start a Python of their own
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2

.PHONY: setup demo test test-quick test-thorough test-all reliability test-browser test-gpu test-lowest lint bench docs screenshot clean coverage dist mutation

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
	$(BIN)/vulture

QUICK := not thorough and not slow and not gpu and not browser
APART := tests/studies tests/papers tests/browser src/lagreach/papers  # nothing in them is quick: they need not be read

test: setup
	@$(MAKE) --no-print-directory --jobs=2 lint test-quick
	@echo "Longer tests: make test-thorough; tests of the report in a real browser: make test-browser"

# see conftest.py for which tests go together
test-quick: setup
	$(PYTEST) --dist loadfile -m "$(QUICK)" $(APART:%=--ignore=%)

# studies killed and resumed, damaged files, some checks of reliability in their small size: what make test leaves out
test-thorough: setup
	$(PYTEST) --dist worksteal -m "thorough and not slow and not gpu and not browser"

test-all: lint
	HYPOTHESIS_PROFILE=search $(PYTEST) -m "not gpu and not browser"

# some two hours on two processors; writes tests/reliability/results.json and docs/reliability.md
reliability: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.reliability

# Chromium and its driver come from the system's packages: only root can install them
test-browser: setup
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; \
	else echo "No browser here: install the packages chromium and chromium-driver, then run this again."; exit 1; fi
	OMP_NUM_THREADS=1 $(BIN)/pytest -m browser tests/browser

test-gpu: setup
	$(BIN)/pytest -m gpu

# the lowest versions of other packages that pyproject.toml allows, in an environment of their own; a quick choice of tests.
# Old packages on new ones warn of what will go away, which is no concern here.
LOWEST := build/lowest
test-lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-lowest.txt \
	  -e ".[all]" beartype hypothesis mpmath pytest
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -W ignore::DeprecationWarning -m "$(QUICK)" \
	  tests/test_house.py tests/cli/test_main.py tests/cli/test_diagnose.py tests/diagnosis/test_diagnose.py tests/diagnosis/test_limits.py tests/advice/test_plan.py tests/diagnosis/test_window.py \
	  tests/kernels/test_cpu.py tests/tails tests/detection tests/regimes tests/report tests/study/test_config.py tests/study/test_store.py

bench: setup
	$(BIN)/python -m benchmarks

# lines of src that the quick tests run; at least 95 in 100
coverage: setup
	rm -rf build/coverage && mkdir -p build/coverage
	COVERAGE_FILE=build/coverage/data OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -q -m "not slow and not gpu and not browser"
	COVERAGE_FILE=build/coverage/data $(BIN)/python -m coverage combine -q
	COVERAGE_FILE=build/coverage/data $(BIN)/python -m coverage report --fail-under=95

# do the tests notice wrong code? Writes tests/mutation/results.json; about an hour
mutation: setup
	$(BIN)/python -m tests.mutation

# wheel and sdist, installed and used in an environment of their own
dist: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	LAGREACH_DIST=dist $(BIN)/pytest -m slow tests/packaging

docs: setup
	$(BIN)/python docs/build.py

# the picture in the README
screenshot: demo
	$(BIN)/python docs/screenshot.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
