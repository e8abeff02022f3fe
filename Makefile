# Every command sets up .venv by itself; the first call installs, later calls start at once.
#   make notebooks             run every notebook (PRESET=smoke make notebooks: a quick pass over all of them)
#   make test                  everything that CI checks, on two processor cores (JOBS=4 make test: on four)
#   make test-browser          every notebook in a real browser, every control moved (make test takes one of them)
#   make html                  the notebooks as a small site in site/, to read without a kernel
#   make lab                   open JupyterLab on a copy of notebooks/, in runs/lab (LAB_FLAGS=... for its own flags)
#   make bench                 speed, measured side by side
#   make data                  check the shipped datasets
#   make chaos                 kill commands at random and feed them nonsense (MINUTES=10); docs/reliability.md

SHELL := /bin/bash
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
PYTHON ?= $(shell for name in python3.11 python3 python; do \
	$$name -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$name && break; done)

.PHONY: notebooks test test-browser html lab bench data chaos setup clean
.DEFAULT_GOAL := notebooks

notebooks: $(READY)
	$(BIN)/python -m brrcrl_lib.cli notebooks run $(if $(PRESET),--preset $(PRESET))

test: export OMP_NUM_THREADS := 1
test: $(READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest tests -m "not thorough" -rs --numprocesses $(JOBS) --dist worksteal
	$(BIN)/python -m pytest --nbval --nbval-current-env --nbval-cell-timeout 300 notebooks --numprocesses $(JOBS) --dist loadfile
	$(BIN)/python -m brrcrl_lib.cli notebooks run --preset smoke --jobs $(JOBS)

test-browser: export OMP_NUM_THREADS := 1
test-browser: $(READY)
	$(BIN)/python -m pytest tests/browser -v -rs

html: $(READY)
	$(BIN)/python -m brrcrl_lib.cli notebooks html

lab: $(READY)
	$(BIN)/python -m brrcrl_lib.tools.lab $(LAB_FLAGS)

bench: $(READY)
	$(BIN)/python -m brrcrl_lib.cli bench

data: $(READY)
	$(BIN)/python -m brrcrl_lib.cli data verify

chaos: $(READY)
	PYTHONPATH=.:tests OMP_NUM_THREADS=1 $(BIN)/python -m chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

setup: $(READY)

$(READY): requirements.lock requirements.hashes pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 not found: install it, or name it with make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON); this happens once and takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --constraint requirements.lock torch  # without a hash: each platform has a build of its own
	$(INSTALL) --no-deps --require-hashes -r requirements.hashes
	$(INSTALL) --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true  # what pip would do on one core
	@touch $@

clean:
	rm -rf $(VENV) runs/notebooks runs/figures runs/browser site
