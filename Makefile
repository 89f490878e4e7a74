# make demo   the main job on real input: a 7B model on a 24 GiB card, then the same on this machine
# make test   lint, types, import rules and every test, with coverage
#
# Both make .venv when it is missing and install into it what they need; PYTHON=... chooses the interpreter.

SHELL := /bin/sh
PYTHON ?= python3.11 python3.12 python3.13 python3 python3.10
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
PLAN := $(BIN)/loadmaster plan
JOB := Qwen/Qwen2.5-7B --method lora --seq 4096 --batch 1

# Both targets install into the same .venv.
.NOTPARALLEL:
.PHONY: demo test lint clean

demo: .venv/core.stamp
	@# A plan exits with 3 when the job does not fit: an answer, not a failure.
	$(PLAN) $(JOB) --gpu rtx4090 || [ $$? -eq 3 ]
	$(PLAN) $(JOB) --gpu auto || [ $$? -eq 3 ]

test: lint
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term

lint: .venv/dev.stamp
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --config pyproject.toml

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* .import_linter_cache

# The interpreter: the first of PYTHON that runs, is 3.10 or newer and can make an environment with pip in it.
.venv/bin/python:
	@for python in $(PYTHON); do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue; \
	    found=$$python; \
	    "$$python" -c 'import ensurepip, venv' 2>/dev/null || continue; \
	    echo "$$python -m venv .venv  ($$("$$python" --version))"; \
	    "$$python" -m venv --clear .venv || { rm -rf .venv; exit 1; }; \
	    exit 0; \
	done; \
	if [ -n "$$found" ]; then \
	    echo "make: $$found has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; \
	else \
	    echo "make: needs Python 3.10 or newer, found none of: $(PYTHON); try make PYTHON=/path/to/python3" >&2; \
	fi; exit 1

.venv/core.stamp: pyproject.toml constraints.txt .venv/bin/python
	@echo "installing loadmaster into .venv (without torch)"
	@$(PIP) install -c constraints.txt -e .
	@$(BIN)/python -m compileall -q src/loadmaster
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt .venv/bin/python
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: the tests need Python 3.11 or newer (transformers does): make clean test PYTHON=..." >&2; exit 1; }
	@echo "installing loadmaster with torch and the test tools into .venv"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch .venv/core.stamp $@
