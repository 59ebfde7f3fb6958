# `make demo` and `make test` do all set-up themselves on a fresh machine with Python 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
# one thread per process unless a command says otherwise; idle threads sleep instead of spinning
export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test test-all lint bench attack clean

demo: .venv/core
	$(BIN)/calibre-fl run

test: .venv/ready lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --durations=15

# the tests that take minutes too: more faults, as real processes
test-all: .venv/ready lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --durations=15 -m ''

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: .venv/ready
	$(BIN)/python -m benchmarks

# 10,000 seeded cases of settings, run folders, replies and requests; a short slice is in `test`
attack: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.attack

# What users install; the demonstration needs no more. All but torch is checked against the hashes in
# requirements/, made from constraints.txt by .ci/lock.py.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED = $(PIP) --require-hashes --no-deps -r

.venv/core: pyproject.toml constraints.txt requirements/core.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Calibre needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(LOCKED) requirements/core.txt
	$(PIP) -c constraints.txt torch
	$(PIP) -c constraints.txt --no-build-isolation -e .
	touch $@

.venv/ready: .venv/core requirements/flower.txt requirements/dev.txt
	$(LOCKED) requirements/flower.txt -r requirements/dev.txt
	$(PIP) -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

clean:
	rm -rf .venv runs
