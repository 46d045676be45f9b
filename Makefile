# make loop   the whole loop on preset nano: base -> SFT -> cycles of RL -> promoted checkpoint
# make test   every test that is not slow
# make claim  the headline numbers: seeds, base against promoted, and the two controls (slow); writes docs/results.md
# make soak   ten thousand honest and hostile programs through the jail: every verdict right, nothing grows (slow)
# The first of them makes .venv and installs; later calls find that done.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MAIN := $(VENV)/.installed-main
DEV := $(VENV)/.installed-dev
PYTEST_ARGS ?=

export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.PHONY: loop test claim soak lint

loop: $(MAIN)
	$(BIN)/dormouse loop

claim: $(MAIN)
	$(BIN)/python -m benchmarks.claim
	$(BIN)/python -m benchmarks.results

soak: $(DEV)
	$(BIN)/python -m tests.adversarial.soak

test: $(DEV)
	$(BIN)/python -m pytest -q -m "not slow" $(PYTEST_ARGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("dormouse needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(MAIN): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

$(DEV): $(MAIN)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@
